package prepare_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// ends returns what was sent with the end of a rewind, which happens once.
func ends(t *testing.T, w *daemontest.World, id string) *daemonv1.Rewound {
	t.Helper()
	var found []*daemonv1.Rewound
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if r.GetMove().GetOperationId() == daemonapi.OperationDoneKey(daemonapi.OperationRewind, id) {
				found = append(found, r.GetMove().GetRewound())
			}
		}
	})
	if len(found) != 1 {
		t.Fatalf("the end of the rewind %s was sent %d times", id, len(found))
	}
	return found[0]
}

// condition is everything that an undo has to bring back.
type condition struct {
	tree         map[string]string
	status, home string
	conversation []string
}

func conditionOf(t *testing.T, w *daemontest.World) condition {
	return condition{w.Tree(), gitStatus(t, w), readHome(w), w.Lines()}
}

func expectCondition(t *testing.T, what string, w *daemontest.World, want condition) {
	t.Helper()
	if d := cmp.Diff(want, conditionOf(t, w), cmp.AllowUnexported(condition{})); d != "" {
		t.Fatalf("%s (-want +got):\n%s", what, d)
	}
}

// An undo goes to the checkpoint that the rewind's end names, with the scope that it names: then
// everything is as before the rewind. Undone in turn, it is as after it.
func TestAnUndoAndItsUndo(t *testing.T) {
	t.Parallel()
	for _, scope := range []string{"Both", "Code", "Conversation"} {
		for _, preserve := range []string{"Branch", "Stash", "Discard"} {
			t.Run(scope+" "+preserve, func(t *testing.T) {
				t.Parallel()
				w := three(t)
				before := conditionOf(t, w)
				op := rewindTo(1, scope, preserve)
				op.ID = "r"
				w.Prepare(2, op)
				after := conditionOf(t, w)
				undo := func(attempt int64, of, id string) {
					rewound := ends(t, w, of)
					op := rewindTo(rewound.GetFromCheckpoint(), rewound.GetScope(), preserve)
					op.ID = id
					if r := w.Prepare(attempt, op); r.Failed != nil || r.ToCheckpoint != rewound.GetFromCheckpoint() {
						t.Fatalf("the undo of %s: %+v", of, r)
					}
				}
				if d := cmp.Diff(&daemonv1.Rewound{Scope: scope, FromCheckpoint: 4, ToCheckpoint: 1}, ends(t, w, "r"), protocmp.Transform()); d != "" {
					t.Fatalf("what the rewind has done (-want +got):\n%s", d)
				}
				undo(3, "r", "u")
				expectCondition(t, "undone", w, before)
				undo(4, "u", "uu")
				expectCondition(t, "undone twice", w, after)
				undo(5, "uu", "uuu")
				expectCondition(t, "undone three times", w, before)
			})
		}
	}
}

// The end of a rewind is recorded once, with the same words, wherever prepare is killed.
func TestWhatARewindHasDoneIsRecordedOnceWhereverItIsKilled(t *testing.T) {
	t.Parallel()
	arranged := three(t)
	op := rewindTo(1, "Both", "Branch")
	op.ID = "r"
	for _, when := range []string{"before move Rewind/r/done", "after move Rewind/r/done"} {
		t.Run(when, func(t *testing.T) {
			w := arranged.Copy(t)
			if _, done := prepareCrashing(t, w, 2, op, &crashing{when: when}); done {
				t.Fatal("it was not killed")
			}
			w.Prepare(3, op)
			want := &daemonv1.Rewound{Scope: "Both", FromCheckpoint: 4, ToCheckpoint: 1}
			if d := cmp.Diff(want, ends(t, w, "r"), protocmp.Transform()); d != "" {
				t.Fatalf("what the rewind has done (-want +got):\n%s", d)
			}
		})
	}
}
