package rewindtarget

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// store knows checkpoint 4, which is damaged, the rewind back that went away from it, message 6,
// and message 7, which came after it.
type store struct{ err error }

func (s store) Checkpoint(_ context.Context, task history.Key, number int64) (history.Checkpoint, error) {
	if task != (history.Key{Namespace: "team", UID: "u"}) || number != 4 {
		return history.Checkpoint{}, fmt.Errorf("%w: checkpoint %d", history.ErrNotFound, number)
	}
	return history.Checkpoint{Number: 4, Integrity: history.Integrity{Damage: "a.txt is missing"}}, s.err
}

func (s store) Rewind(_ context.Context, _ history.Key, id string) (history.Rewind, error) {
	if id != "back" {
		return history.Rewind{ID: id}, s.err
	}
	return history.Rewind{ID: id, Completed: true, Rewound: &history.Rewound{Scope: "Code", From: 4, To: 1}}, s.err
}

func (s store) ResolvePosition(_ context.Context, _ string, q history.PositionQuery) (history.Resolved, error) {
	switch {
	case q.Message == 99:
		return history.Resolved{}, fmt.Errorf("%w: message 99", history.ErrInvalid)
	case q.Message == 13:
		return history.Resolved{}, fmt.Errorf("%w: message 13", history.ErrCorrupted)
	}
	resolved := history.Resolved{Asked: q.Message}
	if q.Message == 7 {
		resolved.Checkpoint = &history.Checkpoint{Number: 4}
	}
	return resolved, s.err
}

func TestTheTargetIsReadAsFarAsTheStoreKnowsIt(t *testing.T) {
	whole := &history.Checkpoint{Number: 4, Integrity: history.Integrity{Damage: "a.txt is missing"}}
	four := plan.RewindRecord{Known: true, Found: whole}
	undone := func(r history.Rewind) plan.RewindUndone { return plan.RewindUndone{Known: true, Found: r} }
	back := history.Rewind{ID: "back", Completed: true, Rewound: &history.Rewound{Scope: "Code", From: 4, To: 1}}
	for name, c := range map[string]struct {
		to   v1alpha1.RewindTarget
		want plan.Observed
	}{
		"a checkpoint by its number":   {v1alpha1.RewindTarget{CheckpointNumber: ptr.To[int64](4)}, plan.Observed{RewindRecord: four}},
		"a number that it lacks":       {v1alpha1.RewindTarget{CheckpointNumber: ptr.To[int64](5)}, plan.Observed{RewindRecord: plan.RewindRecord{Known: true}}},
		"an undo":                      {v1alpha1.RewindTarget{UndoOf: "back"}, plan.Observed{RewindUndone: undone(back), RewindRecord: four}},
		"an undo of nothing":           {v1alpha1.RewindTarget{UndoOf: "x"}, plan.Observed{RewindUndone: undone(history.Rewind{ID: "x"})}},
		"a message":                    {v1alpha1.RewindTarget{Message: ptr.To[int64](6)}, plan.Observed{RewindPosition: plan.RewindPosition{Known: true, Found: &history.Resolved{Asked: 6}}}},
		"a message after a checkpoint": {v1alpha1.RewindTarget{Message: ptr.To[int64](7)}, plan.Observed{RewindPosition: plan.RewindPosition{Known: true, Found: &history.Resolved{Asked: 7, Checkpoint: whole}}}},
		"a message that it lacks":      {v1alpha1.RewindTarget{Message: ptr.To[int64](99)}, plan.Observed{RewindPosition: plan.RewindPosition{Known: true}}},
		"a message that is damaged":    {v1alpha1.RewindTarget{Message: ptr.To[int64](13)}, plan.Observed{RewindPosition: plan.RewindPosition{Known: true, Damaged: "the history is damaged: message 13"}}},
		"a commit":                     {v1alpha1.RewindTarget{Commit: "c"}, plan.Observed{}},
		"a Checkpoint object":          {v1alpha1.RewindTarget{CheckpointRef: &v1alpha1.NameReference{Name: "good"}}, plan.Observed{}},
	} {
		t.Run(name, func(t *testing.T) {
			task := builders.Task("work", builders.InNamespace("team"), builders.WithUID("u"))
			o := plan.Observed{Task: task}
			if err := Observe(t.Context(), store{}, &v1alpha1.Rewind{ID: "new", To: c.to}, &o); err != nil {
				t.Fatal(err)
			}
			c.want.Task = task
			if diff := cmp.Diff(c.want, o); diff != "" {
				t.Errorf("observed (-want +got):\n%s", diff)
			}
		})
	}
}

// What the store cannot say stays unknown, and the rewind waits.
func TestAStoreThatIsDownLeavesTheTargetUnknown(t *testing.T) {
	down := errors.New("down")
	for name, to := range map[string]v1alpha1.RewindTarget{
		"a number": {CheckpointNumber: ptr.To[int64](4)}, "an undo": {UndoOf: "back"}, "a message": {Message: ptr.To[int64](6)},
	} {
		o := plan.Observed{Task: builders.Task("work", builders.InNamespace("team"), builders.WithUID("u"))}
		if err := Observe(t.Context(), store{down}, &v1alpha1.Rewind{ID: "new", To: to}, &o); !errors.Is(err, down) {
			t.Errorf("%s: the error is %v", name, err)
		}
		if o.RewindRecord.Known || o.RewindUndone.Known || o.RewindPosition.Known {
			t.Errorf("%s: observed %+v", name, o)
		}
	}
}

func TestWhatARewindHasDoneIsReadThatOnlyTheHistoryKnowsToBeComplete(t *testing.T) {
	back := history.Rewind{ID: "back", Completed: true, Rewound: &history.Rewound{Scope: "Code", From: 4, To: 1}}
	done := []string{"Rewind/back/done"}
	requested := builders.Rewind("back", "good")
	inProgress := func(t *v1alpha1.Task) {
		t.Status.Rewind = &v1alpha1.OperationStatus{ID: "back", State: v1alpha1.OperationInProgress}
		t.Status.HandledOperations = []string{"Rewind/back"}
	}
	complete := func(t *v1alpha1.Task) {
		inProgress(t)
		t.Status.Rewind.State = v1alpha1.OperationCompleted
	}
	none := func(*v1alpha1.Task) {}
	for name, c := range map[string]struct {
		status    builders.TaskOption
		completed []string
		down      error
		want      plan.RewindDone
	}{
		"one that is new":                      {none, done, nil, plan.RewindDone{Known: true, Found: back}},
		"one in progress":                      {inProgress, done, nil, plan.RewindDone{Known: true, Found: back}},
		"one that has to be carried out":       {none, nil, nil, plan.RewindDone{}},
		"one that the status has as complete":  {complete, done, nil, plan.RewindDone{}},
		"one of which the store cannot say it": {none, done, errors.New("down"), plan.RewindDone{}},
		"one whose record is damaged":          {none, done, history.ErrCorrupted, plan.RewindDone{Known: true}},
	} {
		t.Run(name, func(t *testing.T) {
			o := plan.Observed{Task: builders.Task("work", builders.InNamespace("team"), builders.WithUID("u"), requested, c.status)}
			o.History = plan.History{Known: true, State: history.TaskState{CompletedOperations: c.completed}}
			if err := ObserveDone(t.Context(), store{c.down}, &o); err != nil != (c.down != nil && !errors.Is(c.down, history.ErrCorrupted)) {
				t.Errorf("the error is %v", err)
			}
			if diff := cmp.Diff(c.want, o.RewindDone); diff != "" {
				t.Errorf("observed (-want +got):\n%s", diff)
			}
		})
	}
}
