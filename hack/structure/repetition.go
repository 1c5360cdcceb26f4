package main

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/golangci/dupl/lib"
)

// tokens is the shortest passage that counts as repeated: about fifteen lines.
const tokens = 100

// passage is a piece of code that occurs in a second place.
type passage struct {
	lines       int
	place, same string
}

// repetition returns the passages of the files that occur elsewhere in them, longest
// first. Passages are compared by syntax: names and values may differ.
func repetition(root string, files []file) ([]passage, error) {
	var names []string
	for _, f := range files {
		names = append(names, filepath.Join(root, filepath.FromSlash(f.path)))
	}
	clones, err := lib.Run(names, tokens)
	if err != nil {
		return nil, fmt.Errorf("find what is repeated: %w", err)
	}
	place := func(name string, first, last int) string {
		if relative, err := filepath.Rel(root, name); err == nil {
			name = filepath.ToSlash(relative)
		}
		return fmt.Sprintf("%s:%d-%d", name, first, last)
	}
	var found []passage
	for _, c := range clones {
		found = append(found, passage{
			lines: c.From.LineEnd() - c.From.LineStart() + 1,
			place: place(c.From.Filename(), c.From.LineStart(), c.From.LineEnd()),
			same:  place(c.To.Filename(), c.To.LineStart(), c.To.LineEnd()),
		})
	}
	slices.SortStableFunc(found, func(a, b passage) int { return b.lines - a.lines })
	return found, nil
}
