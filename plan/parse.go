package plan

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gpuline/gpuline/event"
)

// Parse reads a plan's text; the package comment has the grammar. A text that
// breaks it is event.InvalidPlan.
func Parse(text string) (Plan, error) {
	p, fault := parse(text)
	if fault != "" {
		return Plan{}, invalid(text, fault)
	}
	return p, nil
}

func invalid(text, fault string) error {
	return event.New(event.InvalidPlan, "completion wait plan", fmt.Sprintf("%q: %s", text, fault))
}

// parse returns the plan, or the first fault.
func parse(text string) (p Plan, fault string) {
	park, predict, predicted := strings.Cut(text, "+")
	if predicted {
		fields, ok := strings.CutPrefix(predict, "predict:")
		if !ok {
			return p, fmt.Sprintf("%q after + is not predict:<fields>", predict)
		}
		if p.pred, fault = parsePrediction(fields); fault != "" {
			return p, fault
		}
	}
	if fault = p.parsePark(park); fault == "" && p.kind == Block && predicted {
		fault = "block takes no prediction: there is nothing to sleep in front of"
	}
	return p, fault
}

func parsePrediction(text string) (p Prediction, fault string) {
	var v [predFields]uint64
	if fault = parseFields(text, predNames[:], v[:]); fault != "" {
		return p, fault
	}
	if fault = checkRange("window", v[windowN], 1, maxWindow); fault != "" {
		return p, fault
	}
	if v[minSleepUS] > v[maxSleepUS] {
		return p, fmt.Sprintf("min_sleep_us=%d is above max_sleep_us=%d", v[minSleepUS], v[maxSleepUS])
	}
	for i, n := range v {
		if i != windowN && n > math.MaxInt64/uint64(time.Microsecond) {
			return p, fmt.Sprintf("%s=%d overflows when turned into nanoseconds", predNames[i], n)
		}
	}
	return Prediction{
		margin:   duration(v[marginUS]),
		minSleep: duration(v[minSleepUS]),
		maxSleep: duration(v[maxSleepUS]),
		window:   int(v[windowN]),
	}, ""
}

func (p *Plan) parsePark(text string) (fault string) {
	name, fields, listed := strings.Cut(text, ":")
	for k, row := range kindTable {
		if row.name != name || listed && len(row.params) == 0 {
			continue
		}
		names, v := make([]string, len(row.params)), make([]uint64, len(row.params))
		for i, param := range row.params {
			names[i] = paramTable[param].name
		}
		if !listed && len(names) > 0 {
			return "missing field " + names[0]
		}
		if listed {
			if fault = parseFields(fields, names, v); fault != "" {
				return fault
			}
		}
		p.kind = Kind(k)
		for i, param := range row.params {
			t := paramTable[param]
			if fault = checkRange(t.name, v[i], t.min, t.max); fault != "" {
				return fault
			}
			p.v[param] = duration(v[i])
		}
		return ""
	}
	forms := make([]string, len(kindTable))
	for k, row := range kindTable {
		forms[k] = row.name
		if len(row.params) > 0 {
			forms[k] += ":<fields>"
		}
	}
	return fmt.Sprintf("unknown park %q, want %s", text, strings.Join(forms, ", "))
}

// parseFields reads a list of key=<n>, each of names exactly once, into the
// element of v that has the name's index.
func parseFields(text string, names []string, v []uint64) (fault string) {
	seen := make([]bool, len(names))
	for field := range strings.SplitSeq(text, ",") {
		key, n, ok := strings.Cut(field, "=")
		if !ok {
			return fmt.Sprintf("field %q is not key=<n>", field)
		}
		i := 0
		for i < len(names) && names[i] != key {
			i++
		}
		if i == len(names) {
			return fmt.Sprintf("unknown field %q, want %s", key, strings.Join(names, ", "))
		}
		if seen[i] {
			return "field " + key + " is stated twice"
		}
		seen[i] = true
		var err error
		if v[i], err = strconv.ParseUint(n, 10, 64); err != nil {
			return fmt.Sprintf("%s=%q is not an unsigned 64-bit number", key, n)
		}
	}
	for i, ok := range seen {
		if !ok {
			return "missing field " + names[i]
		}
	}
	return ""
}

func checkRange(name string, v, low, high uint64) (fault string) {
	if v < low || v > high {
		return fmt.Sprintf("%s=%d is out of range, want %d..%d", name, v, low, high)
	}
	return ""
}

// duration turns microseconds, which must not overflow, into a duration.
func duration(us uint64) time.Duration { return time.Duration(us) * time.Microsecond }
