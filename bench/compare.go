package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/gpuline/gpuline/bench/internal/report"
	"github.com/gpuline/gpuline/bench/internal/result"
)

func compareMain(args []string) error {
	fs := flag.NewFlagSet("compare", flag.ExitOnError)
	fs.Usage = func() { fmt.Fprintln(fs.Output(), "usage: bench compare before.json after.json") }
	_ = fs.Parse(args)
	if fs.NArg() != 2 {
		fs.Usage()
		os.Exit(2)
	}
	a, err := result.Load(fs.Arg(0))
	if err != nil {
		return err
	}
	b, err := result.Load(fs.Arg(1))
	if err != nil {
		return err
	}
	report.Comparison(os.Stdout, result.Compare(a, b))
	return nil
}
