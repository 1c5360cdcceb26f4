package main

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/onsi/ginkgo/v2/types"
)

// A test reports how often it did something by logging "soak: 12 THINGS", or "soak: 12
// GROUP: THING", which also counts for the group, and the seed of its random numbers by
// logging "CLEW_SEED=…". A spec reports the same in entries named soak and CLEW_SEED.
var (
	soakLine = regexp.MustCompile(`: soak: (\d+ .+)\n$`)
	seedLine = regexp.MustCompile(`: CLEW_SEED=(\d+)\n$`)
)

// soakTable adds up these reports.
type soakTable struct {
	count map[string]int
	seeds []string
}

func (s *soakTable) read(test, output string) {
	if m := soakLine.FindStringSubmatch(output); m != nil {
		s.add(m[1])
	}
	if m := seedLine.FindStringSubmatch(output); m != nil {
		s.addSeed(test, m[1])
	}
}

func (s *soakTable) readSpec(name string, spec types.SpecReport) {
	for _, entry := range spec.ReportEntries {
		switch entry.Name {
		case "soak":
			s.add(entry.StringRepresentation())
		case "CLEW_SEED":
			s.addSeed(name, entry.StringRepresentation())
		}
	}
}

// add counts "12 THINGS".
func (s *soakTable) add(text string) {
	number, what, _ := strings.Cut(text, " ")
	n, err := strconv.Atoi(number)
	if err != nil {
		return
	}
	if s.count == nil {
		s.count = map[string]int{}
	}
	s.count[what] += n
	if group, _, ok := strings.Cut(what, ": "); ok {
		s.count[group] += n
	}
}

func (s *soakTable) addSeed(test, seed string) { s.seeds = append(s.seeds, test+" CLEW_SEED="+seed) }

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
