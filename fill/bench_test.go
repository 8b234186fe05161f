package fill_test

import (
	"context"
	"testing"

	"github.com/gpuline/gpuline/fill"
)

func BenchmarkYield(b *testing.B) {
	b.ReportAllocs()
	_, err := fill.Run(context.Background(), fill.Options{}, func(t *fill.Task) error {
		for range b.N {
			t.Yield()
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}
