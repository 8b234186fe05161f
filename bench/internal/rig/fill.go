package rig

import "github.com/gpuline/gpuline/fill"

// startFill is a task per lane in one run of the FILL executor.
func startFill(r *run) error {
	points := r.points()
	r.start(func() error {
		_, err := fill.Run(r.ctx, fill.Options{}, func(t *fill.Task) error {
			for _, l := range r.lanes {
				t.Spawn(func(t *fill.Task) error {
					for {
						seq, err := l.marked()
						if err == nil {
							err = t.WaitPoint(points[l.i], l.s, seq)
						}
						if err != nil {
							return err
						}
						if !l.done(seq) {
							return nil
						}
					}
				})
			}
			return nil
		})
		return err
	})
	return nil
}
