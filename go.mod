module github.com/gpuline/gpuline

go 1.26.0

require (
	github.com/ebitengine/purego v0.11.3
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.50.0
)
