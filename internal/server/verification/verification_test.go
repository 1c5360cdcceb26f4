package verification

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
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
	// after and resting are what the last call of NextVerification was given.
	after   string
	resting []string
	// unfinished are the last numbers of parts that were put aside half done.
	unfinished []int64
	// pushed are the checkpoints that the history has as durable.
	pushed []int64
	// postponed are the UIDs of the tasks that were put off; down is why none can be.
	postponed []string
	down      error
}

func (d *due) EnrollVerifications(context.Context) (int64, error) { return 0, nil }

func (d *due) NextVerification(_ context.Context, after string, resting []string) (history.Verification, error) {
	d.after, d.resting = after, resting
	for i, part := range d.parts {
		if !slices.Contains(resting, part.Turn) {
			d.parts = slices.Delete(d.parts, i, i+1)
			return part, nil
		}
	}
	return history.Verification{}, history.ErrNotFound
}

func (d *due) PostponeVerification(_ context.Context, v history.Verification) error {
	if d.down == nil {
		d.postponed = append(d.postponed, v.Task.UID)
	}
	return d.down
}

func (d *due) DamagedConversations(context.Context, history.Key) (map[int64]string, error) {
	return d.conversations, nil
}

func (d *due) PushedCheckpoints(context.Context, string) (durable, lost []int64, err error) {
	return d.pushed, []int64{4}, nil
}

func (d *due) RecordVerification(_ context.Context, v history.Verification, verdicts []history.Verdict, conversations map[int64]string) (changes []history.VerdictChange, err error) {
	d.verdicts, d.damaged = append(d.verdicts, verdicts...), conversations
	if v.More {
		d.unfinished = append(d.unfinished, v.Numbers[len(v.Numbers)-1])
	}
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

// gitstore has damaged checkpoints.
type gitstore struct {
	inventory
	damage map[int64][]gitstoreapi.Damage
	err    error
	// since is the time of the last question.
	since *time.Time
}

func (g gitstore) Verify(_ context.Context, _, _ string, checkpoint int64, since time.Time) (gitstoreapi.Verification, error) {
	if g.since != nil {
		*g.since = since
	}
	return gitstoreapi.Verification{Damage: g.damage[checkpoint]}, g.err
}

// inventory are the numbers of the checkpoints that a gitstore has.
type inventory struct {
	numbers []int64
	fails   error
}

func (i inventory) Checkpoints(context.Context, string, string) ([]int64, error) {
	return i.numbers, i.fails
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
	for name, tc := range map[string]struct {
		answer, down error
		pauses       bool
	}{
		"an error about the task":            {answer: gitstoreapi.New(gitstoreapi.Unavailable, "git could not answer")},
		"a task in several repositories":     {answer: gitstoreapi.New(gitstoreapi.Ambiguous, "which one?")},
		"an answer that comes too late":      {answer: context.DeadlineExceeded},
		"a gitstore that cannot be reached":  {answer: fmt.Errorf("%w: refused", gitstoreapi.ErrUnreachable), pauses: true},
		"a gitstore that knows no server":    {answer: gitstoreapi.New(gitstoreapi.Unauthenticated, "who is it?"), pauses: true},
		"a history that cannot note it down": {answer: errors.New("broken"), down: history.ErrUnavailable, pauses: true},
	} {
		store := &due{parts: []history.Verification{{Task: history.Task{UID: "uid"}, Pass: true, Numbers: []int64{1}}}, down: tc.down}
		v := &Verifier{Store: store, Code: gitstore{err: tc.answer}}
		worked, err := v.Step(t.Context())
		if pauses := err != nil; pauses != tc.pauses || worked == tc.pauses {
			t.Errorf("%s: Step returned %v, %v", name, worked, err)
		}
		if postponed := len(store.postponed) > 0; postponed == tc.pauses {
			t.Errorf("%s: put off: %v", name, store.postponed)
		}
		if len(store.verdicts) > 0 {
			t.Errorf("%s: recorded %v", name, store.verdicts)
		}
	}
}

// closed is a gitstore that refuses to verify what one namespace has stored.
type closed struct {
	inventory
	to string
}

func (c closed) Verify(_ context.Context, namespace, _ string, _ int64, _ time.Time) (gitstoreapi.Verification, error) {
	if namespace == c.to {
		return gitstoreapi.Verification{}, gitstoreapi.New(gitstoreapi.Unavailable, "too many requests are in progress; try again")
	}
	return gitstoreapi.Verification{}, nil
}

func TestTheRefusalsOfOneNamespaceDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &due{}
		for n := range 50 {
			store.parts = append(store.parts, history.Verification{Turn: "hostile", Task: history.Task{Namespace: "hostile", UID: fmt.Sprint(n)}, Numbers: []int64{1}})
		}
		store.parts = append(store.parts, history.Verification{Turn: "victim", Task: history.Task{Namespace: "victim", UID: "v"}, Numbers: []int64{2}})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_ = (&Verifier{Store: store, Code: closed{to: "hostile"}}).Run(ctx)
		if d := cmp.Diff([]history.Verdict{{Number: 2}}, store.verdicts); d != "" {
			t.Errorf("verdicts (-want +got):\n%s", d)
		}
		if len(store.postponed) != 50 {
			t.Errorf("%d parts were put off, want 50", len(store.postponed))
		}
		if store.after != "victim" {
			t.Errorf("the next part was asked for after the namespace %q, want the last one's", store.after)
		}
	})
}

// slow is a gitstore that verifies slowly.
type slow struct {
	inventory
	takes time.Duration
}

func (s slow) Verify(ctx context.Context, _, _ string, _ int64, _ time.Time) (gitstoreapi.Verification, error) {
	select {
	case <-time.After(s.takes):
		return gitstoreapi.Verification{}, nil
	case <-ctx.Done():
		return gitstoreapi.Verification{}, ctx.Err()
	}
}

func TestTheRestAfterALongPartIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &due{parts: []history.Verification{{Numbers: []int64{1}}, {Numbers: []int64{2}}}}
		ctx, cancel := context.WithTimeout(t.Context(), 70*time.Second)
		defer cancel()
		_ = (&Verifier{Store: store, Code: slow{takes: 25 * time.Second}}).Run(ctx)
		if len(store.verdicts) != 2 {
			t.Errorf("within 70 seconds, %d of two parts of 25 seconds each were verified", len(store.verdicts))
		}
	})
}

func TestAPartThatExceedsItsTurnIsPutAsideHalfDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		task := history.Task{Namespace: "team", UID: "uid"}
		store := &due{parts: []history.Verification{{Task: task, Pass: true, Numbers: []int64{1, 2, 3, 4, 5}}}}
		v := &Verifier{Store: store, Code: slow{takes: 12 * time.Second}}
		if worked, err := v.Step(t.Context()); !worked || err != nil {
			t.Fatalf("Step returned %v, %v", worked, err)
		}
		if d := cmp.Diff([]history.Verdict{{Number: 1}, {Number: 2}}, store.verdicts); d != "" {
			t.Errorf("verdicts (-want +got):\n%s", d)
		}
		if d := cmp.Diff([]int64{2}, store.unfinished); d != "" || len(store.postponed) > 0 {
			t.Errorf("it goes on after (-want +got):\n%sput off: %v", d, store.postponed)
		}
	})
}

func TestAPartWithoutProgressIsPutOffAndGetsALongerTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		part := history.Verification{Turn: "team", Task: history.Task{Namespace: "team", UID: "uid"}, Pass: true, Numbers: []int64{1}}
		store := &due{}
		v := &Verifier{Store: store, Code: slow{takes: 100 * time.Second}}
		for range 3 {
			store.parts = append(store.parts, part)
			if worked, err := v.Step(t.Context()); !worked || err != nil {
				t.Fatalf("Step returned %v, %v", worked, err)
			}
		}
		if len(store.postponed) != 2 || len(store.verdicts) != 1 {
			t.Errorf("put off %d times and verified %d times, want 2 and 1: after turns of 30 and 60 seconds", len(store.postponed), len(store.verdicts))
		}
	})
}

// hostile is a gitstore in which only one namespace takes long, and never ends.
type hostile struct{ inventory }

func (hostile) Verify(ctx context.Context, namespace, _ string, _ int64, _ time.Time) (gitstoreapi.Verification, error) {
	if namespace == "hostile" {
		<-ctx.Done()
	}
	return gitstoreapi.Verification{}, ctx.Err()
}

func TestANamespaceWhoseVerificationsNeverEndGetsASmallPartOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &due{}
		for n := range 100 {
			store.parts = append(store.parts, history.Verification{Turn: "hostile", Task: history.Task{Namespace: "hostile", UID: fmt.Sprint("h", n)}, Numbers: []int64{1}})
		}
		for n := range 10000 {
			store.parts = append(store.parts, history.Verification{Turn: "victim", Task: history.Task{Namespace: "victim", UID: fmt.Sprint("v", n)}, Numbers: []int64{1}})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		_ = (&Verifier{Store: store, Code: hostile{}}).Run(ctx)
		if took := len(store.postponed); took > 3 || took == 0 || len(store.verdicts) < 3600 {
			t.Errorf("in ten minutes, %d parts of the hostile namespace had a turn, and %d of the other one", took, len(store.verdicts))
		}
	})
}

func TestACheckpointOfATaskThatTheGitstoreDoesNotKnowIsDamaged(t *testing.T) {
	damage, err := Objects(t.Context(), gitstore{err: gitstoreapi.New(gitstoreapi.NotFound, "none")}, history.Key{}, 1, time.Time{})
	if err != nil || damage == "" {
		t.Errorf("Objects returned %q, %v", damage, err)
	}
	if _, err := Objects(t.Context(), gitstore{err: errors.New("broken")}, history.Key{}, 1, time.Time{}); err == nil {
		t.Error("an error that says nothing about the checkpoint was taken for damage")
	}
}
