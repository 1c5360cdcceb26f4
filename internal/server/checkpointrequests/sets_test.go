package checkpointrequests_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/server/checkpointrequests"
	"github.com/clew-dev/clew/internal/server/gateway"
)

// set makes a Checkpoint name a set of the tasks a and b, in a state; "" for one that has yet to begin.
func set(state clewv1alpha1.CheckpointSetState) func(*clewv1alpha1.Checkpoint) {
	return func(c *clewv1alpha1.Checkpoint) {
		if c.Spec.Scope = clewv1alpha1.CheckpointOfContract; state != "" {
			c.Status.Set = &clewv1alpha1.CheckpointSet{State: state, Members: []clewv1alpha1.CheckpointSetMember{{Task: "a"}, {Task: "b"}}}
		}
	}
}

// part makes a Checkpoint of the task b part of the set "evening".
func part(c *clewv1alpha1.Checkpoint) {
	c.Spec.TaskRef.Name, c.Spec.PartOf = "b", &clewv1alpha1.CheckpointSetRef{Name: "evening", UID: "uid-evening"}
}

func TestCheckpointsOfASetAreRequestedWhileItIsTaken(t *testing.T) {
	board := checkpointrequests.New()
	for state, want := range map[clewv1alpha1.CheckpointSetState]int{
		"": 0, clewv1alpha1.SetTaking: 1, clewv1alpha1.SetReleasing: 0, clewv1alpha1.SetApart: 0,
	} {
		board.Set(checkpoint("evening", set(state)))
		if pending := board.Pending("team", "a", nil); len(pending) != want {
			t.Errorf("in the state %q: %v", state, pending)
		}
	}
	board.Set(checkpoint("evening", set(clewv1alpha1.SetTaking)))
	board.Set(checkpoint("of-b", part))
	want := gateway.CheckpointRequest{Name: "evening", UID: "uid-evening", Message: "m", Hold: "uid-evening"}
	if d := cmp.Diff([]gateway.CheckpointRequest{want}, board.Pending("team", "a", nil)); d != "" {
		t.Errorf("the supervisor's (-want +got):\n%s", d)
	}
	want.Name, want.UID = "of-b", "uid-of-b"
	if d := cmp.Diff([]gateway.CheckpointRequest{want}, board.Pending("team", "b", nil)); d != "" {
		t.Errorf("the child's (-want +got):\n%s", d)
	}
	board.Set(checkpoint("of-b", part, func(c *clewv1alpha1.Checkpoint) {
		c.Status.Conditions = []metav1.Condition{{Type: clewv1alpha1.CheckpointReady, Status: metav1.ConditionFalse, Reason: clewv1alpha1.ReasonNotTakenTogether}}
	}))
	if pending := board.Pending("team", "b", nil); len(pending) != 0 {
		t.Errorf("after its set: %v", pending)
	}
}

func TestAgentsContinueWhenTheirSetIsReleasedOrDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*checkpointrequests.Board)
		want   []gateway.Release
	}{
		"it is being taken": {func(*checkpointrequests.Board) {}, nil},
		"all are taken":     {func(b *checkpointrequests.Board) { b.Set(checkpoint("evening", set(clewv1alpha1.SetReleasing))) }, []gateway.Release{{Set: "uid-evening"}}},
		"it is deleted":     {func(b *checkpointrequests.Board) { b.Remove(checkpoint("evening", set(clewv1alpha1.SetTaking))) }, []gateway.Release{{Set: "uid-evening", Gone: true}}},
		"it is out of sight for a moment, by a label": {func(b *checkpointrequests.Board) {
			b.Remove(checkpoint("evening", set(clewv1alpha1.SetTaking)))
			b.Set(checkpoint("evening", set(clewv1alpha1.SetReleasing)))
		}, []gateway.Release{{Set: "uid-evening", Gone: true}}},
		"one that was never seen is gone":  {func(b *checkpointrequests.Board) { b.Remove(checkpoint("another", set(clewv1alpha1.SetTaking))) }, nil},
		"it has ended, and all know of it": {func(b *checkpointrequests.Board) { b.Set(checkpoint("evening", set(clewv1alpha1.SetTogether))) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			board := checkpointrequests.New()
			board.Set(checkpoint("evening", set(clewv1alpha1.SetTaking)))
			changed, leave := board.Changes("team", "b")
			defer leave()
			c.change(board)
			if c.want != nil {
				select {
				case <-changed:
				default:
					t.Error("it was not announced")
				}
			}
			for _, task := range []string{"a", "b"} {
				if d := cmp.Diff(c.want, board.Releases("team", task)); d != "" {
					t.Errorf("of task %s (-want +got):\n%s", task, d)
				}
			}
			if got := board.Releases("team", "c"); len(got) > 0 {
				t.Errorf("of no member: %v", got)
			}
		})
	}
}

func TestDeletedSetsAreForgotten(t *testing.T) {
	board := checkpointrequests.New()
	for i := range 1000 {
		c := checkpoint(fmt.Sprintf("set-%d", i), set(clewv1alpha1.SetTaking))
		board.Set(c)
		board.Remove(c)
	}
	if got := board.Releases("team", "b"); len(got) > 64 || got[len(got)-1].Set != "uid-set-999" {
		t.Errorf("%d are remembered: %v", len(got), got)
	}
}
