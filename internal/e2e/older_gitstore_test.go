//go:build e2e && soak

package e2e

import (
	. "github.com/onsi/ginkgo/v2"
)

// Serial: it restores a store that every task needs.
var _ = Describe("a task whose gitstore is restored from an older copy", Serial, Label("slow", "soak"), func() {
	w := newWorld()

	It("survives it: what was lost is pushed again", func(ctx SpecContext) {
		w.expectSurvivesOlder(ctx, &volumeStore{component: "gitstore", workload: "statefulset/clew-gitstore"}, "gitstore", pick(1, 10))
	})
})
