package main

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A test tells how often it did something by logging "soak: 12 THINGS", or "soak:
// 12 GROUP: THING", which is counted with its group as well; and the seed of its
// dice by "CLEW_SEED=…".
var (
	told = regexp.MustCompile(`: soak: (\d+) (.+)\n$`)
	cast = regexp.MustCompile(`: CLEW_SEED=(\d+)\n$`)
)

// soakTable adds up what tests told of.
type soakTable struct {
	count map[string]int
	seeds []string
}

func (s *soakTable) read(test, output string) {
	if m := told.FindStringSubmatch(output); m != nil {
		n, _ := strconv.Atoi(m[1]) // digits; too many of them are nobody's
		if s.count == nil {
			s.count = map[string]int{}
		}
		s.count[m[2]] += n
		if group, _, ok := strings.Cut(m[2], ": "); ok {
			s.count[group] += n
		}
	}
	if m := cast.FindStringSubmatch(output); m != nil {
		s.seeds = append(s.seeds, test+" CLEW_SEED="+m[1])
	}
}

// print prints the table: each group and, below it, its things.
func (s *soakTable) print(w io.Writer) {
	if len(s.count) == 0 {
		return
	}
	fmt.Fprintln(w, "\nWhat was done, and what came of it:")
	for _, what := range slices.Sorted(maps.Keys(s.count)) {
		n := s.count[what]
		if _, thing, ok := strings.Cut(what, ": "); ok {
			what = "  " + thing
		}
		fmt.Fprintf(w, "%8d  %s\n", n, what)
	}
	for _, seed := range s.seeds {
		fmt.Fprintln(w, seed)
	}
}
