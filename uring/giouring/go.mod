module github.com/gpuline/gpuline/uring/giouring

go 1.26.0

require (
	github.com/gpuline/gpuline v0.0.0
	github.com/pawelgaczynski/giouring v0.0.0-20230826085535-69588b89acb9
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.50.0
)

require github.com/ebitengine/purego v0.11.3 // indirect

replace github.com/gpuline/gpuline => ../..
