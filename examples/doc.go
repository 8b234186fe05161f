// Package examples holds complete programs: see the folders.
//
// select is the first program to read. server, epollserver and uringserver do the
// same work with each of the hosts (channels, epoll, io_uring), under the same
// load and with the same count of what is left afterwards. fill runs tasks on one
// thread.
package examples
