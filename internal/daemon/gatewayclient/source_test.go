package gatewayclient

import (
	"errors"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemonapi"
)

func TestASourceIsAwaitedByWhoHasBegun(t *testing.T) {
	g, w := gomega.NewWithT(t), sourceWait{}
	now := time.Now()
	g.Expect(w.handle(now, ErrNotFound)).To(gomega.Equal(ErrNotFound))
	g.Expect(w.over()).To(gomega.BeFalse(), "it has nothing to begin with")
	w.begin()
	g.Expect(w.over()).To(gomega.BeFalse(), "nothing is missing")
	g.Expect(w.handle(now, ErrNotFound)).To(gomega.And(gomega.MatchError(ErrSourceAwaited), gomega.MatchError(ErrNotFound)))
	g.Expect(w.over()).To(gomega.BeTrue())
	g.Expect(w.handle(now, errors.New("down"))).NotTo(gomega.MatchError(ErrSourceAwaited))
	g.Expect(w.handle(now, nil)).To(gomega.Succeed())
	g.Expect(w.over()).To(gomega.BeFalse(), "nothing is missing any more")
}

// After a restore all daemons send at once: one of many answers may be that there is no
// slot, for example.
func TestOtherErrorsOnlyPutOffHowLongASourceIsAwaited(t *testing.T) {
	g, w := gomega.NewWithT(t), sourceWait{patience: 6 * time.Minute}
	w.begin()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	hear := func(after time.Duration, err error) {
		now = now.Add(after)
		_ = w.handle(now, err)
	}
	hear(0, ErrNotFound)
	hear(5*time.Minute, ErrNotFound)
	hear(time.Second, errors.New("busy"))
	hear(time.Hour, ErrNotFound)
	g.Expect(w.over()).To(gomega.BeFalse(), "in an outage, the source cannot come back either")
	hear(59*time.Second, ErrNotFound)
	g.Expect(w.over()).To(gomega.BeFalse())
	hear(time.Second, ErrNotFound)
	g.Expect(w.over()).To(gomega.BeTrue(), "six minutes in all")
}

func TestWhatAwaitsItsSourceSaysSoInOneSentence(t *testing.T) {
	g, w := gomega.NewWithT(t), sourceWait{patience: 6 * time.Minute, source: daemonapi.Source{TaskName: "fix", TaskUID: "u", Checkpoint: 7}.String()}
	w.begin()
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	_ = w.handle(at, ErrNotFound)
	err := w.handle(at.Add(time.Minute), classify("begin", ErrNotFound))
	g.Expect(err).To(gomega.MatchError("the history store has lost checkpoint 7 of task fix (UID u), from which this task was started; " +
		"it waits for the pod of that task to send the checkpoint again, for 6 minutes, or 30 while that pod is running " +
		"(this pod has waited since 12:00 UTC; the waits of earlier pods count, and at most one minute of the time between two pods); " +
		"then it starts without the inherited part of the conversation; its files are not affected"))
}
