package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpuline/gpuline/event"
)

// The program runs, and its text is checked, under every executor.
func TestRun(t *testing.T) {
	t.Setenv("GPULINE_DRIVER", "soft")
	var out strings.Builder
	if err := run(context.Background(), &out, "all", false, 3, 8); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"naive\n", "gpu-reactor", "io-uring", "24 tokens", "filled with work", "decode 2"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
	if err := run(context.Background(), &out, "gpu", false, 1, 1); !errors.Is(err, event.InvalidExecutor) {
		t.Errorf("error %v, want InvalidExecutor", err)
	}
	if err := run(context.Background(), &out, "all", false, 0, 1); err == nil {
		t.Error("no sequences: want an error")
	}
}

// The text comes out whole although runes arrive in parts.
func TestText(t *testing.T) {
	p := pieces()
	tx := text{pieces: p}
	var seen []string
	for _, token := range []int{'a', lead, 0xA9, 300, lead} {
		tx.add(token)
		seen = append(seen, string(tx.shown))
	}
	want := []string{"a", "a", "aé", "aé" + p[300], "aé" + p[300]}
	for i := range want {
		if seen[i] != want[i] {
			t.Errorf("after token %d: %q, want %q", i, seen[i], want[i])
		}
	}
}

// The sampler keeps to the likeliest tokens and does not repeat itself for ever.
func TestSampler(t *testing.T) {
	host := rows()
	s := newSampler(1)
	multibyte := false
	token := 1
	for range 300 {
		row := state(token) * rowBytes
		s.decode(host[row : row+rowBytes])
		before := token
		token = s.sample()
		better := 0
		for _, l := range s.logits {
			if l > s.logits[token] {
				better++
			}
		}
		if better >= topK {
			t.Fatalf("token %d is only number %d", token, better+1)
		}
		multibyte = multibyte || before == lead && token >= 0x80 && token < 0xC0
	}
	if !multibyte {
		t.Error("no rune of two tokens: the detokeniser is not tested")
	}
	if text := reference(pieces(), host, 1, 300); !utf8.ValidString(text) || strings.ContainsRune(text, utf8.RuneError) {
		t.Errorf("text %q", text)
	}
}
