package examples

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// The programs run as a reader would run them, briefly.
func TestPrograms(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"./select"}, []string{"served: a request that arrives meanwhile", "the device is done"}},
		{[]string{"./server", "-load", "500ms", "-clients", "8", "-streams", "8", "-work", "200us"}, []string{"0 wrong, 0 failed", "left over  0 registrations, 0 retained buffers, 0 leaks"}},
		{[]string{"./epollserver", "-load", "500ms", "-clients", "8", "-streams", "8", "-work", "200us"}, []string{"0 wrong, 0 failed", "left over  0 registrations, 0 retained buffers, 0 leaks"}},
	} {
		if c.args[0] == "./epollserver" && runtime.GOOS != "linux" {
			continue
		}
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			out, err := exec.Command("go", append([]string{"run"}, c.args...)...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, w := range c.want {
				if !strings.Contains(string(out), w) {
					t.Errorf("the output lacks %q:\n%s", w, out)
				}
			}
		})
	}
}
