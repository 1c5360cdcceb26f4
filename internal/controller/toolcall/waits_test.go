package toolcall

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func TestOnlyTheCallsThatWaitForAnObjectAreWoken(t *testing.T) {
	w, first, second := &waits{}, requestOf("default", "uid-lead", "one"), requestOf("default", "uid-lead", "two")
	a := builders.Task("a")
	fork := &v1alpha1.Fork{}
	fork.Namespace, fork.Name = "default", "a"
	checkpoint := &v1alpha1.Checkpoint{}
	checkpoint.Namespace, checkpoint.Name, checkpoint.Spec.TaskRef.Name = "default", "a-1", "a"
	woken := func(by client.Object, want ...reconcile.Request) {
		t.Helper()
		got := w.of(by)
		slices.SortFunc(got, func(x, y reconcile.Request) int { return slices.Compare([]byte(x.Name), []byte(y.Name)) })
		if !slices.Equal(got, want) {
			t.Errorf("%T %s wakes %v, want %v", by, by.GetName(), got, want)
		}
	}
	woken(a)
	w.add(first, keyOf(a, client.ObjectKeyFromObject(a)))
	w.add(second, keyOf(a, client.ObjectKeyFromObject(a)))
	w.add(second, checkpointsOf("default", "a"))
	woken(a, first, second)
	woken(fork)
	woken(checkpoint, second)
	woken(builders.Task("a", builders.InNamespace("other")))
	w.begin(second)
	woken(a, first)
	woken(checkpoint)
	w.end(first)
	w.end(first)
	if len(w.by)+len(w.call) > 0 {
		t.Errorf("still remembered: %v, %v", w.by, w.call)
	}
}

func TestPhasesHandsOverTheOldestCallOfATask(t *testing.T) {
	p, woken := &Phases{}, 0
	lead := builders.Task("lead", builders.WithUID("uid-lead"))
	p.set(lead, plan.PhaseCall{ID: "one", Phase: "Plan"}) // nobody listens yet
	p.wake = func(r reconcile.Request) {
		woken++
		if r.NamespacedName != (types.NamespacedName{Namespace: "default", Name: "lead"}) {
			t.Errorf("%v is woken", r)
		}
	}
	p.set(lead, plan.PhaseCall{ID: "two", Phase: "Review"})
	p.set(lead, plan.PhaseCall{ID: "two", Phase: "Review"})
	if woken != 2 {
		t.Errorf("the task was woken %d times, want 2", woken)
	}
	for _, want := range []string{"one", "two"} {
		if got := p.Of("uid-lead"); got == nil || got.ID != want {
			t.Fatalf("it is %+v, want %s", got, want)
		}
		p.drop("uid-lead", want)
	}
	p.drop("uid-lead", "two")
	if p.Of("uid-lead") != nil || p.Of("uid-other") != nil || len(p.calls) != 0 {
		t.Errorf("still remembered: %v", p.calls)
	}
}
