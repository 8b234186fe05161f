//go:build !unix

package usage

func now() Usage { return Usage{} }
