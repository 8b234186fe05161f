//go:build !linux

package rig

import "os"

func eventFile() (*os.File, int, error) {
	return nil, 0, skipped("there are no eventfds on this system")
}
