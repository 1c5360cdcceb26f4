package task

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/fakehistory"
)

// recording counts the events that it passes on to its store.
type recording struct {
	*fakehistory.Store
	recorded []int64
}

func (r *recording) RecordEvents(ctx context.Context, events []history.Event) error {
	err := r.Store.RecordEvents(ctx, events)
	for _, e := range events {
		if err == nil {
			r.recorded = append(r.recorded, e.Transition)
		}
	}
	return err
}

// ledger is a task that only has transitions.
type ledger struct {
	*testing.T
	task  *v1alpha1.Task
	store *recording
	r     *Reconciler
}

func newLedger(t *testing.T) *ledger {
	store := &recording{Store: fakehistory.New()}
	task := &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "tidy-up", UID: "uid"}}
	return &ledger{T: t, task: task, store: store, r: &Reconciler{Store: store, Clock: clock.RealClock{}}}
}

// transition adds a transition, and reconciles.
func (l *ledger) transition() {
	s := &l.task.Status
	s.HistorySequence++
	s.History = append(s.History, v1alpha1.HistoryEntry{Sequence: s.HistorySequence, Reason: "X", Time: metav1.NewMicroTime(time.Now())})
	l.reconcile()
}

// reconcile does with transitions what a reconciliation does.
func (l *ledger) reconcile() {
	m := l.r.memory.of(l.task)
	defer m.Unlock()
	l.r.record(l.Context(), l.task, m)
	l.r.recordLost(l.Context(), l.task, m)
}

// minutesPass advances the clock past the next comparison.
func (l *ledger) minutesPass() {
	m := l.r.memory.of(l.task)
	defer m.Unlock()
	m.lastCompared = time.Time{}
}

// recorded returns the numbers of the transitions in the store.
func (l *ledger) recorded() (numbers []int64) {
	for _, e := range l.store.Events("uid") {
		numbers = append(numbers, e.Transition)
	}
	slices.Sort(numbers)
	return numbers
}

func through(n int64) (numbers []int64) {
	for i := int64(1); i <= n; i++ {
		numbers = append(numbers, i)
	}
	return numbers
}

// TestLostTransitionsAreRecordedAgainAfterANewOne: a transition that waited while the store
// was down, or one made before the next comparison.
func TestLostTransitionsAreRecordedAgainAfterANewOne(t *testing.T) {
	for name, away := range map[string]bool{"after an outage": true, "without one that was noticed": false} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			l := newLedger(t)
			for range 10 {
				l.transition()
			}
			if away {
				l.store.SetDown(true)
				l.transition()
				l.store.SetDown(false)
			}
			l.store.Forget("uid", 6)
			l.transition()
			l.minutesPass()
			l.reconcile()
			g.Expect(l.recorded()).To(gomega.Equal(through(l.task.Status.HistorySequence)))
			before := len(l.store.recorded)
			l.minutesPass()
			l.reconcile()
			g.Expect(l.store.recorded).To(gomega.HaveLen(before), "nothing is recorded again if nothing is missing")
		})
	}
}

// TestTransitionsAfterARestoreOfTheStatusAreRecorded: by a manager that kept running, and
// has recorded more than the older copy has.
func TestTransitionsAfterARestoreOfTheStatusAreRecorded(t *testing.T) {
	g := gomega.NewWithT(t)
	l := newLedger(t)
	for range 40 {
		l.transition()
	}
	s := &l.task.Status
	s.History, s.HistorySequence, s.RecordedSequence = s.History[:30], 30, 30
	l.store.recorded = nil
	for range 5 {
		l.transition()
	}
	g.Expect(l.store.recorded).To(gomega.Equal([]int64{31, 32, 33, 34, 35}))
}

// TestADeletedHistoryIsKnown: without a request of its own.
// TestTransitionsNameTheContract, also of a task that waits, whose spec nobody keeps.
func TestTransitionsNameTheContract(t *testing.T) {
	g, l := gomega.NewWithT(t), newLedger(t)
	l.task.Spec.Contract = &v1alpha1.Contract{Name: "port"} // which it has yet to join
	l.transition()
	g.Expect(l.store.Events("uid")).To(gomega.ConsistOf(gomega.HaveField("Contract", "port")))
}

func TestADeletedHistoryIsKnown(t *testing.T) {
	g := gomega.NewWithT(t)
	l := newLedger(t)
	l.r.Store = deleted{l.store}
	l.reconcile()
	m := l.r.memory.of(l.task)
	defer m.Unlock()
	g.Expect(m.historyDeleted).To(gomega.BeTrue())
}

// deleted is a store in which the task's history was deleted.
type deleted struct{ *recording }

func (deleted) RecordedTransitions(context.Context, string, string) (int64, error) {
	return math.MaxInt64, nil
}
