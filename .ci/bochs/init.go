// Command init is process 1 of the emulated machine: it runs /test with the
// arguments in /args and the environment in /env (one a line each), reports its
// exit status on the console, and switches the machine off.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}} {
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil {
			fmt.Println("init: mount", m[1], err)
		}
	}
	cmd := exec.Command("/test", lines("/args")...)
	cmd.Env = append(lines("/env"), "HOME=/tmp", "PATH=/")
	cmd.Dir = "/tmp"
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	fmt.Println("@@BEGIN@@")
	status := 125
	if err := cmd.Run(); cmd.ProcessState != nil {
		status = cmd.ProcessState.ExitCode() // -1 when a signal ended it
	} else {
		fmt.Println("init:", err)
	}
	fmt.Printf("\n@@EXIT %d@@\n", status)
	// Switching off does not wait for the serial port: drain it (tcdrain), and
	// give the emulator time for what is left in the port itself.
	_ = unix.IoctlSetInt(1, unix.TCSBRK, 1)
	time.Sleep(300 * time.Millisecond)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func lines(file string) []string {
	b, err := os.ReadFile(file)
	if err != nil || len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}
