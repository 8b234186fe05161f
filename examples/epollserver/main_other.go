//go:build !linux

package main

import "log"

func main() { log.Fatal("epollserver: epoll exists on Linux only") }
