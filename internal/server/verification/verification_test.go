package verification

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
)

// due is a Store with parts of verifications that are due, and what was recorded.
type due struct {
	parts         []history.Verification
	conversations map[int64]string
	verdicts      []history.Verdict
	damaged       map[int64]string
	events        []string
}

func (d *due) EnrollVerifications(context.Context) (int64, error) { return 0, nil }

func (d *due) NextVerification(context.Context) (history.Verification, error) {
	if len(d.parts) == 0 {
		return history.Verification{}, history.ErrNotFound
	}
	part := d.parts[0]
	d.parts = d.parts[1:]
	return part, nil
}

func (d *due) DamagedConversations(context.Context, history.Key) (map[int64]string, error) {
	return d.conversations, nil
}

func (d *due) RecordVerification(_ context.Context, _ history.Verification, verdicts []history.Verdict, conversations map[int64]string) (changes []history.VerdictChange, err error) {
	d.verdicts, d.damaged = append(d.verdicts, verdicts...), conversations
	for _, v := range verdicts {
		if v.Damage != "" || v.Number == 9 { // checkpoint 9 was damaged before
			changes = append(changes, history.VerdictChange{Number: v.Number, Damage: v.Damage, Found: time.Unix(1, 0)})
		}
	}
	return changes, nil
}

func (d *due) RecordEvents(_ context.Context, events []history.Event) error {
	for _, e := range events {
		d.events = append(d.events, e.Reason+": "+e.Message)
	}
	return nil
}

// gitstore is a Code with damaged checkpoints.
type gitstore struct {
	damage map[int64][]gitstoreapi.Damage
	err    error
}

func (g gitstore) Verify(_ context.Context, _, _ string, checkpoint int64, _ bool) (gitstoreapi.Verification, error) {
	return gitstoreapi.Verification{Damage: g.damage[checkpoint]}, g.err
}

func TestWhatIsDueIsVerifiedAndWhatChangedIsTold(t *testing.T) {
	task := history.Task{Namespace: "team", Name: "fix", UID: "uid"}
	lost := gitstoreapi.Damage{Part: gitstoreapi.PartCode, Kind: "blob", Object: "0123456789abcdef", Path: "a.txt", What: "is missing"}
	store := &due{
		parts:         []history.Verification{{Task: task, Pass: true, Conversation: true, Numbers: []int64{7, 8, 9, 10}}},
		conversations: map[int64]string{10: "message 3 is missing"},
	}
	v := &Verifier{Store: store, Code: gitstore{damage: map[int64][]gitstoreapi.Damage{8: {lost}, 10: {lost, lost, lost}}}}
	if worked, err := v.Step(t.Context()); !worked || err != nil {
		t.Fatalf("Step returned %v, %v", worked, err)
	}
	const named = "in the gitstore, a.txt of its code (blob 0123456789ab) is missing"
	want := []history.Verdict{{Number: 7}, {Number: 8, Damage: named}, {Number: 9}, {Number: 10, Damage: named + ", and 2 more objects are damaged"}}
	if d := cmp.Diff(want, store.verdicts); d != "" {
		t.Errorf("verdicts (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[int64]string{10: "message 3 is missing"}, store.damaged); d != "" {
		t.Errorf("damaged conversations (-want +got):\n%s", d)
	}
	told := []string{
		v1alpha1.EventCheckpointCorrupted + ": checkpoint 8 is damaged: " + named,
		v1alpha1.EventCheckpointHealed + ": checkpoint 9 is intact again",
		v1alpha1.EventCheckpointCorrupted + ": checkpoint 10 is damaged: " + named + ", and 2 more objects are damaged",
	}
	if d := cmp.Diff(told, store.events); d != "" {
		t.Errorf("events (-want +got):\n%s", d)
	}
	if worked, err := v.Step(t.Context()); worked || err != nil {
		t.Errorf("with nothing due, Step returned %v, %v", worked, err)
	}
}

func TestNothingIsConcludedFromAGitstoreThatCannotAnswer(t *testing.T) {
	store := &due{parts: []history.Verification{{Pass: true, Numbers: []int64{1}}}}
	v := &Verifier{Store: store, Code: gitstore{err: gitstoreapi.New(gitstoreapi.Unavailable, "down")}}
	if _, err := v.Step(t.Context()); err == nil || len(store.verdicts) > 0 {
		t.Errorf("Step returned %v and recorded %v", err, store.verdicts)
	}
}

func TestACheckpointOfATaskThatTheGitstoreDoesNotKnowIsDamaged(t *testing.T) {
	damage, err := Objects(t.Context(), gitstore{err: gitstoreapi.New(gitstoreapi.NotFound, "none")}, history.Key{}, 1, false)
	if err != nil || damage == "" {
		t.Errorf("Objects returned %q, %v", damage, err)
	}
	if _, err := Objects(t.Context(), gitstore{err: errors.New("broken")}, history.Key{}, 1, false); err == nil {
		t.Error("an error that says nothing about the checkpoint was taken for damage")
	}
}
