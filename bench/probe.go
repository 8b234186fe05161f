package main

func probeMain([]string) error { return nil }
