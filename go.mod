module github.com/gpuline/gpuline

go 1.26.0

require (
	github.com/ebitengine/purego v0.11.3 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
)
