package opencl

import (
	"strings"

	"github.com/gpuline/gpuline/gpu/driver"
)

// Streams returns how many streams are open, and how many are closed but still
// held because their work was under way when last looked at.
func (d *Device) Streams() (open, closing int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.live), len(d.closing)
}

// Limited is the driver with devices that can do less than they say: their SVM
// capabilities are cut down to SVM, and the library lacks the entry points whose
// names contain Lack.
type Limited struct {
	*Driver
	SVM  uint64
	Lack string
}

// Open implements driver.Driver.
func (l Limited) Open(ordinal int) (driver.Device, error) {
	d, err := l.Driver.open(ordinal)
	if err != nil {
		return nil, err
	}
	a := *d.a
	if l.Lack != "" {
		for _, e := range a.entries() {
			if e.optional && strings.Contains(e.name, l.Lack) {
				*e.entry = 0
			}
		}
	}
	return newDevice(&a, found{id: d.id, info: d.info, svm: d.svm & l.SVM}, d.ctx), nil
}

// Missing resolves the entry points of a library that lacks one.
func Missing(name string) error {
	return new(api).resolve(func(sym string) uintptr {
		if sym == name {
			return 0
		}
		return 1
	})
}

// Entries lists the names of the entry points, and which are optional.
func Entries() map[string]bool {
	m := make(map[string]bool)
	for _, e := range new(api).entries() {
		m[e.name] = e.optional
	}
	return m
}
