module github.com/gpuline/gpuline/bench

go 1.26.0

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0
	github.com/gpuline/gpuline v0.0.0
	golang.org/x/sys v0.50.0
)

require github.com/ebitengine/purego v0.11.3 // indirect

replace github.com/gpuline/gpuline => ../
