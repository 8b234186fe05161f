package plan_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpuline/gpuline/event"
	"github.com/gpuline/gpuline/plan"
)

func ExampleParse() {
	p, err := plan.Parse("flag:park_us=100,backstop_us=1000+predict:window=8,margin_us=150,min_sleep_us=20,max_sleep_us=50000")
	fmt.Println(p, err)

	_, err = plan.Parse("staged:spin_us=50,nap_us=0,backstop_us=1000")
	fmt.Println(errors.Is(err, event.InvalidPlan))
	fmt.Println(err)
	// Output:
	// flag:park_us=100,backstop_us=1000+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=8 <nil>
	// true
	// gpuline: invalid completion wait plan: "staged:spin_us=50,nap_us=0,backstop_us=1000": nap_us=0 is out of range, want 1..10000
}

func ExamplePlan_Resolve() {
	// A virtual machine: the GPU stores words, the processor has no park.
	caps := plan.Caps{
		DeviceWordStore: plan.Capability{OK: true},
		ProcessorPark:   plan.Capability{Why: "the hypervisor hides it"},
	}
	p, _ := plan.Parse("park:park_us=100,spin_us=50,nap_us=100,backstop_us=1000")
	r := p.Resolve(caps)
	fmt.Println(r.Running)
	fmt.Println(r.Warning)
	// Output:
	// staged:spin_us=50,nap_us=100,backstop_us=1000
	// gpuline: wait plan park:park_us=100,spin_us=50,nap_us=100,backstop_us=1000 needs device word wait (no processor park: the hypervisor hides it): running staged:spin_us=50,nap_us=100,backstop_us=1000
}

func ExampleParseBands() {
	b, _ := plan.ParseBands("block;rows>=32:poll")
	var steps plan.Steps // shared by whoever launches steps and whoever waits
	for _, rows := range []uint64{1, 31, 32, 4096} {
		steps.Publish(rows)
		fmt.Println(rows, b.At(steps.Load()))
	}
	// Output:
	// 1 block
	// 31 block
	// 32 poll
	// 4096 poll
}

func ExampleEstimator() {
	p, _ := plan.Parse("poll+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=8")
	pred, _ := p.Prediction()
	type key struct{ site, step string }
	e := plan.NewEstimator[key](pred)

	point := e.Point(key{"sampler", "decode"})
	fmt.Println(point.Sleep())
	for _, residual := range []time.Duration{1000, 900, 1100} {
		point.Exact(residual * time.Microsecond)
	}
	fmt.Println(point.Sleep())
	point.Late(2 * time.Millisecond) // only an upper bound: counts as half
	fmt.Println(point.Sleep())
	for _, row := range e.Table() {
		fmt.Println(row.Key, row.Prediction, row.Samples, row.Late)
	}
	// Output:
	// 0s
	// 750µs
	// 300µs
	// {sampler decode} 450µs 4 1
}
