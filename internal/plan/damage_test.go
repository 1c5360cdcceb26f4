package plan

import (
	"testing"

	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// TestADamagedCheckpointIsRefusedHoweverItIsNamed: by an object, a number, a message or an id, by
// a rewind, a resume or another task.
func TestADamagedCheckpointIsRefusedHoweverItIsNamed(t *testing.T) {
	broken := threeRecorded()
	broken.Integrity = history.Integrity{Damage: "a.txt is missing", IntactBefore: 2}
	record := RewindRecord{Known: true, Found: broken}
	position := RewindPosition{Known: true, Found: &history.Resolved{Asked: 9, Position: history.Position{Position: 9}, Checkpoint: broken}}
	rewind := func(to v1alpha1.RewindTarget) (*v1alpha1.OperationStatus, *Blocker) {
		task := builders.Task("work")
		d := &decision{task: task, s: &task.Status, o: Observed{Task: task, RewindRecord: record, RewindPosition: position, RewindUndone: RewindUndone{
			Known: true, Found: history.Rewind{ID: "first", Completed: true, Rewound: &history.Rewound{Scope: "Code", From: 3, To: 1}},
		}}}
		return d.resolveRewind(&v1alpha1.Rewind{ID: "back", Scope: v1alpha1.RewindCode, Preserve: v1alpha1.PreserveDiscard, To: to})
	}
	source := func(at v1alpha1.StartPoint, found Source) *Blocker {
		found.Known, found.Record = true, broken
		from := &v1alpha1.StartFrom{TaskRef: v1alpha1.NameReference{Name: "source"}, At: &at}
		_, b := ResolveSource(builders.Task("new").Spec.Repository, from, found)
		return b
	}
	number, message := ptr.To[int64](3), ptr.To[int64](9)
	for name, resolve := range map[string]func() *Blocker{
		"a rewind to its number": func() *Blocker { _, b := rewind(v1alpha1.RewindTarget{CheckpointNumber: number}); return b },
		"a rewind to a message":  func() *Blocker { _, b := rewind(v1alpha1.RewindTarget{Message: message}); return b },
		"the undo of a rewind":   func() *Blocker { _, b := rewind(v1alpha1.RewindTarget{UndoOf: "first"}); return b },
		"a resume from its number": func() *Blocker {
			task := builders.Task("work")
			d := &decision{task: task, s: &task.Status, o: Observed{Task: task, ResumeRecord: record}}
			_, b := d.resolveResume(&v1alpha1.Resume{ID: "on", Mode: v1alpha1.ResumeFromCheckpoint, CheckpointNumber: number})
			return b
		},
		"a start from its number": func() *Blocker {
			return source(v1alpha1.StartPoint{CheckpointNumber: number}, Source{Task: builders.Task("source", builders.WithUID("u"))})
		},
		"a start from a message": func() *Blocker {
			return source(v1alpha1.StartPoint{Message: message}, Source{Task: builders.Task("source", builders.WithUID("u")), Found: position.Found})
		},
		"a start from a task that is gone": func() *Blocker {
			return source(v1alpha1.StartPoint{CheckpointNumber: number}, Source{Kept: []string{"u"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := resolve()
			if b == nil || b.Reason != v1alpha1.ReasonCheckpointCorrupted {
				t.Fatalf("the blocker is %+v", b)
			}
			s := newScene(t)
			s.wantMessage(b.Message, "checkpoint 3", "a.txt is missing; checkpoint 2 is the nearest earlier one that is intact")
		})
	}
}
