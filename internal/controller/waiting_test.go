package controller_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

var _ = Describe("A task that waits for another one to start from", func() {
	It("goes on when that appears and has a checkpoint, without looking for it meanwhile", func() {
		w := newWorld()
		w.grace = time.Hour
		w.restartManager()
		w.apply("second", builders.StartFrom("source", ""))
		w.until("second", v1alpha1.ReasonSourceNotFound)
		p := w.running("source")
		w.until("second", v1alpha1.ReasonCheckpointNotFound)
		w.store.Begin(w.id("source"), 1)
		w.complete("source", p)
		w.pod("second", 1)
	})
})
