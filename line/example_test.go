package line_test

import (
	"fmt"

	"github.com/gpuline/gpuline/line"
)

func Example() {
	pages, err := line.Map(1, false)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pages.Close()

	slot, err := line.NewSlot(3)
	if err != nil {
		fmt.Println(err)
		return
	}
	d := line.Descriptor{Line: &pages.Lines[0], Slot: slot, Target: 2}
	fmt.Println(d.Reached())
	d.Word().Store(3) // a device's store; number 2 is complete too
	fmt.Println(d.Reached())

	_, err = line.NewSlot(8)
	fmt.Println(err)
	// Output:
	// false
	// true
	// gpuline: line slot 8: out of range, want 0..7
}

func ExampleReached() {
	const last = 1<<64 - 1 // the counter wraps after it
	fmt.Println(line.Reached(last, last), line.Reached(last, 0), line.Reached(0, last))
	// Output: true false true
}
