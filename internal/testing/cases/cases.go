// Package cases iterates over the cases of a table in a fixed order. All processes of a Ginkgo
// suite must build the same tree of specs, and the order of a map differs each time.
package cases

import (
	"iter"
	"maps"
	"slices"
)

// Sorted iterates over the cases of a table, sorted by name.
func Sorted[Case any](table map[string]Case) iter.Seq2[string, Case] {
	return func(yield func(string, Case) bool) {
		for _, name := range slices.Sorted(maps.Keys(table)) {
			if !yield(name, table[name]) {
				return
			}
		}
	}
}
