// Command bench measures what waiting for a GPU costs a Go program, with this
// library and with what one would do without it, on the machine at hand.
//
//	go run . run -quick          a minute
//	go run . run -out r.json -html r.html
//	go run . compare before.json after.json
//	go run . probe
package main

import (
	"fmt"
	"os"

	"github.com/gpuline/gpuline/bench/internal/rig"
)

const usage = `usage: bench <command>

  run [-quick|-aims] [-driver soft] [-out file.json] [-html file.html]   measure
  compare before.json after.json                                   what changed beyond noise
  probe                                                            what this machine has

bench <command> -h lists a command's flags.
`

func main() {
	rig.Child()
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	commands := map[string]func(args []string) error{"run": runMain, "compare": compareMain, "probe": probeMain}
	f, ok := commands[os.Args[1]]
	if !ok {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err := f(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
