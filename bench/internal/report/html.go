package report

import "github.com/gpuline/gpuline/bench/internal/result"

// HTML writes the report.
func HTML(path string, f *result.File) error { return nil }
