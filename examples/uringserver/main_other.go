//go:build !linux

package main

import "log"

func main() { log.Fatal("uringserver: io_uring exists on Linux only") }
