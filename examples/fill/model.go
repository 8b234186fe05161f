package main

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"unicode/utf8"
)

// The model is a toy with the shape of the real thing: the device holds a row of
// logits for each of a few dozen states, the last token selects the row, and the
// host samples from it. It is small enough to be checked and large enough for
// a step's work on the host to take a few hundred microseconds.
const (
	vocabulary = 32768
	states     = 64
	rowBytes   = vocabulary * 4

	lead      = 0xC3 // the first byte of é, è, à and ü, each two tokens
	leadState = 1

	temperature = 0.8
	topK        = 40
	topP        = 0.95
	penalty     = 1.0 // for tokens seen lately
	lately      = 64
)

// pieces returns what each token stands for: the 256 bytes, then made-up words.
func pieces() []string {
	rng := rand.New(rand.NewPCG(7, 1))
	p := make([]string, vocabulary)
	for i := range p {
		if i < 256 {
			p[i] = string([]byte{byte(i)})
			continue
		}
		var b []byte
		if rng.IntN(2) == 0 {
			b = append(b, ' ')
		}
		for range 1 + rng.IntN(3) {
			b = append(b, "bdfgklmnprstvz"[rng.IntN(14)], "aeiou"[rng.IntN(5)])
		}
		p[i] = string(b)
	}
	return p
}

// rows returns the logits of all states, little-endian float32, row by row.
func rows() []byte {
	rng := rand.New(rand.NewPCG(7, 2))
	b := make([]byte, 0, states*rowBytes)
	row := make([]float32, vocabulary)
	for s := range states {
		for i := range row {
			row[i] = float32(rng.NormFloat64())
		}
		if s == leadState {
			for _, second := range []int{0xA9, 0xA8, 0xA0, 0xBC} {
				row[second] = 20
			}
		} else {
			for range 24 {
				row[256+rng.IntN(vocabulary-256)] += 6
			}
			row[lead] = 6
		}
		for _, v := range row {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
	}
	return b
}

// state returns the state that the device is in after a token.
func state(token int) int {
	if token == lead {
		return leadState
	}
	h := fnv.New32a()
	_ = binary.Write(h, binary.LittleEndian, uint32(token))
	return 2 + int(h.Sum32()%(states-2))
}

// sampler draws tokens from logits. It is deterministic for a seed.
type sampler struct {
	rng    *rand.Rand
	past   []int
	logits []float32
	best   []candidate
}

type candidate struct {
	token int
	logit float64
}

func newSampler(seed uint64) *sampler {
	return &sampler{rng: rand.New(rand.NewPCG(seed, 3)), logits: make([]float32, vocabulary)}
}

// decode takes a row over from the device's bytes.
func (s *sampler) decode(row []byte) {
	for i := range s.logits {
		s.logits[i] = math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:]))
	}
	for _, token := range s.past[max(0, len(s.past)-lately):] {
		s.logits[token] -= penalty
	}
}

// sample draws the next token among the topK most likely ones that make up topP
// of the probability.
func (s *sampler) sample() int {
	s.best = s.best[:0]
	byLogit := func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.logit, a.logit), cmp.Compare(a.token, b.token))
	}
	for token, l := range s.logits {
		c := candidate{token, float64(l)}
		if len(s.best) == topK && byLogit(c, s.best[topK-1]) > 0 {
			continue
		}
		i, _ := slices.BinarySearchFunc(s.best, c, byLogit)
		s.best = slices.Insert(s.best, i, c)
		s.best = s.best[:min(len(s.best), topK)]
	}
	sum := 0.0
	for i := range s.best {
		s.best[i].logit = math.Exp((s.best[i].logit - float64(s.logits[s.best[0].token])) / temperature)
		sum += s.best[i].logit
	}
	kept, n := 0.0, 0
	for n < len(s.best) && kept < topP*sum {
		kept += s.best[n].logit
		n++
	}
	draw := s.rng.Float64() * kept
	token := s.best[n-1].token
	for _, c := range s.best[:n] {
		if draw -= c.logit; draw < 0 {
			token = c.token
			break
		}
	}
	s.past = append(s.past, token)
	return token
}

// text puts the pieces of tokens together. What is complete can be shown at
// once; the first bytes of a rune wait for the rest of it.
type text struct {
	pieces []string
	shown  []byte
	held   []byte
}

func (t *text) add(token int) {
	t.held = append(t.held, t.pieces[token]...)
	for len(t.held) > 0 && utf8.FullRune(t.held) {
		r, n := utf8.DecodeRune(t.held)
		t.shown = utf8.AppendRune(t.shown, r)
		t.held = t.held[n:]
	}
}

// reference is what sequence number seq has to come to, worked out without
// a device and with the text put together at the end.
func reference(pieces []string, rows []byte, seq, tokens int) string {
	s := newSampler(uint64(seq))
	var all []byte
	token := seq
	for range tokens {
		row := state(token) * rowBytes
		s.decode(rows[row : row+rowBytes])
		token = s.sample()
		all = append(all, pieces[token]...)
	}
	var out []byte
	for len(all) > 0 && utf8.FullRune(all) {
		r, n := utf8.DecodeRune(all)
		out = utf8.AppendRune(out, r)
		all = all[n:]
	}
	return string(out)
}
