package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Do runs the job in a child process.
func Do(ctx context.Context, j Job) (Answer, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return Answer{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return Answer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, j.Warm+j.Measure+20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), Env+"="+string(text))
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	start := time.Now()
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return Answer{}, fmt.Errorf("child process: %w: %s", err, firstLine(errs.String()))
	}
	var a Answer
	if err := json.Unmarshal(out.Bytes(), &a); err != nil {
		return Answer{}, fmt.Errorf("child process said %q: %w", out.String(), err)
	}
	a.Wall = time.Since(start)
	return a, nil
}

func firstLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[0]
}
