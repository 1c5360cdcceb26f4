package plan

import (
	"fmt"
	"slices"
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// startedFrom returns a task that starts from checkpoint 2 of the scene's task.
func startedFrom(name string, options ...builders.TaskOption) v1alpha1.Task {
	t := builders.Task(name, append([]builders.TaskOption{builders.WithUID("uid-" + name), builders.StartFrom("tidy-up", "")}, options...)...)
	t.Status.Source = &v1alpha1.SourceStatus{TaskUID: "uid-of-task", Checkpoint: 2, Commit: "c"}
	return *t
}

// TestATaskKnowsWhatStartsFromIt: each task once, in status and history.
func TestATaskKnowsWhatStartsFromIt(t *testing.T) {
	s := completedTask(t)
	fork := startedFrom("fork", func(t *v1alpha1.Task) {
		t.Spec.StartFrom.Fork = &v1alpha1.ForkOrigin{Name: "try", UID: "u", FieldManager: "argocd"}
	})
	unresolved := startedFrom("unresolved")
	unresolved.Status.Source = nil
	s.o.Started = []v1alpha1.Task{fork, startedFrom("other"), unresolved}
	s.step()
	want := []v1alpha1.StartedTask{{Name: "fork", UID: "uid-fork", Checkpoint: 2}, {Name: "other", UID: "uid-other", Checkpoint: 2}}
	if got := s.o.Task.Status.StartedTasks; !slices.Equal(got, want) {
		t.Errorf("startedTasks are %v, want %v", got, want)
	}
	entry := s.o.Task.Status.History[len(s.o.Task.Status.History)-2]
	if entry.Reason != v1alpha1.EventTaskBranched || entry.Checkpoint != 2 || entry.Actor != "argocd (field manager)" || entry.Message != "task fork starts from checkpoint 2, for Fork try" {
		t.Errorf("the entry is %+v", entry)
	}
	writes := s.writes
	s.o.Started = append(s.o.Started, startedFrom("later"))
	s.step()
	s.step()
	if got := s.o.Task.Status.StartedTasks; len(got) != 3 || s.writes != writes+1 {
		t.Errorf("after a third task startedTasks are %v, and there were %d writes", got, s.writes-writes)
	}
}

// TestTheListOfStartedTasksIsBounded: those that are gone make room for new ones.
func TestTheListOfStartedTasksIsBounded(t *testing.T) {
	s := completedTask(t)
	for i := range maxStarted + 3 {
		s.o.Started = append(s.o.Started, startedFrom(fmt.Sprintf("fork-%03d", i)))
		if i%20 != 0 && i != maxStarted+2 {
			continue
		}
		s.step()
		for _, p := range s.plans {
			if n := len(p.Entries); n > startedAtOnce {
				t.Fatalf("one decision adds %d entries", n)
			}
		}
		s.o.Recorded = s.o.Task.Status.HistorySequence
	}
	listed := func() (names []string) {
		for _, t := range s.o.Task.Status.StartedTasks {
			names = append(names, t.Name)
		}
		return names
	}
	if names := listed(); len(names) != maxStarted || names[0] != "fork-000" {
		t.Fatalf("%d tasks are listed: %v", len(names), names)
	}
	s.o.Started = slices.Delete(s.o.Started, 1, 3)
	s.step()
	if names := listed(); len(names) != maxStarted || !slices.Contains(names, "fork-101") || slices.Contains(names, "fork-001") || slices.Contains(names, "fork-102") {
		t.Errorf("after two are gone, these are listed: %v", names)
	}
}
