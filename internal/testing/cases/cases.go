// Package cases gives the cases of a table in an order that is always the same. The
// processes of a suite of Ginkgo must each build the same tree of specs, and a map's order
// is another each time.
package cases

import (
	"iter"
	"maps"
	"slices"
)

// Sorted gives the cases of a table by their names.
func Sorted[Case any](table map[string]Case) iter.Seq2[string, Case] {
	return func(yield func(string, Case) bool) {
		for _, name := range slices.Sorted(maps.Keys(table)) {
			if !yield(name, table[name]) {
				return
			}
		}
	}
}
