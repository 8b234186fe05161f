//go:build giouring && linux && !race

package giouringhost

import "github.com/gpuline/gpuline/uring"

func raceAcquire(*uring.Host) {}
