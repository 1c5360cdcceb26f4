package verification

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/fairshare"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
)

// verdicts is a Verdicts that remembers what was recorded.
type verdicts struct {
	mu            sync.Mutex
	conversations map[int64]string
	// read counts how often the messages were verified.
	read     int
	recorded []history.Verdict
	events   []string
}

func (v *verdicts) DamagedConversations(context.Context, history.Key) (map[int64]string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.read++
	return v.conversations, nil
}

func (v *verdicts) RecordVerdicts(_ context.Context, _ history.Key, found []history.Verdict, conversations map[int64]string) (changes []history.VerdictChange, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.recorded = append(v.recorded, found...)
	for _, f := range found {
		if damage := f.Damage + conversations[f.Number]; damage != "" {
			changes = append(changes, history.VerdictChange{Number: f.Number, Damage: damage})
		}
	}
	return changes, nil
}

func (v *verdicts) RecordEvents(_ context.Context, events []history.Event) error {
	for _, e := range events {
		v.events = append(v.events, e.Reason+": "+e.Message)
	}
	return nil
}

func TestACheckpointIsVerifiedOnDemandAndWhatWasFoundIsRecorded(t *testing.T) {
	task, since := history.Task{Namespace: "team", Name: "fix", UID: "uid"}, time.Now()
	store := &verdicts{conversations: map[int64]string{8: "message 3 is missing"}}
	d := NewOnDemand(store, gitstore{damage: map[int64][]gitstoreapi.Damage{9: {{Part: gitstoreapi.PartCode, Kind: "blob", Object: "0123", Path: "a.txt", What: "is missing"}}}}, logr.Discard())
	for n := int64(7); n <= 9; n++ {
		if err := d.Verify(t.Context(), task, n, since); err != nil {
			t.Fatalf("the verification of checkpoint %d: %v", n, err)
		}
	}
	const missing = "in the gitstore, a.txt of its code (blob 0123) is missing"
	if diff := cmp.Diff([]history.Verdict{{Number: 7}, {Number: 8}, {Number: 9, Damage: missing}}, store.recorded); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	told := []string{v1alpha1.EventCheckpointCorrupted + ": checkpoint 8 is damaged: message 3 is missing", v1alpha1.EventCheckpointCorrupted + ": checkpoint 9 is damaged: " + missing}
	if diff := cmp.Diff(told, store.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if store.read != 1 {
		t.Errorf("the messages of the task were verified %d times for three of its checkpoints", store.read)
	}
	if err := d.Verify(t.Context(), task, 7, time.Now()); err != nil || store.read != 2 {
		t.Errorf("who asks anew got %v, and the messages were verified %d times", err, store.read)
	}
}

// patient is a gitstore that takes a minute for each checkpoint.
type patient struct{ count chan int64 }

func (p patient) Verify(_ context.Context, _, _ string, number int64, _ time.Time) (gitstoreapi.Verification, error) {
	p.count <- number
	time.Sleep(time.Minute)
	return gitstoreapi.Verification{}, nil
}

func TestAVerificationThatTakesLongGoesOnAndIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		code := patient{make(chan int64, 100)}
		d := NewOnDemand(&verdicts{}, code, logr.Discard())
		ask := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 16*time.Second)
			defer cancel()
			return d.Verify(ctx, history.Task{Namespace: "team", UID: "uid"}, 1, time.Now())
		}
		asked := 0
		for err := ErrInProgress; errors.Is(err, ErrInProgress); asked++ {
			err = ask()
			if err != nil && !errors.Is(err, ErrInProgress) {
				t.Fatal(err)
			}
		}
		if len(code.count) != 1 || asked != 4 {
			t.Errorf("within %d requests, the checkpoint was verified %d times", asked, len(code.count))
		}
	})
}

func TestOneNamespaceVerifiesOneCheckpointAtATimeAndDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		code := patient{make(chan int64, 100)}
		d := NewOnDemand(&verdicts{}, code, logr.Discard())
		busy := 0
		for n := range int64(40) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
			if err := d.Verify(ctx, history.Task{Namespace: "greedy", UID: "uid"}, n+1, time.Now()); errors.Is(err, fairshare.ErrBusy) {
				busy++
			}
			cancel()
			synctest.Wait()
		}
		began := time.Now()
		if err := d.Verify(t.Context(), history.Task{Namespace: "other", UID: "other"}, 1, time.Now()); err != nil || time.Since(began) > time.Minute {
			t.Errorf("another namespace's verification took %s: %v", time.Since(began), err)
		}
		if busy == 0 {
			t.Error("nobody was told to come back later")
		}
		time.Sleep(20 * time.Minute) // the rest ends
	})
}

// sluggish is a gitstore that takes five minutes for each checkpoint of some tasks, and goes on where it
// was interrupted.
type sluggish struct {
	mu   sync.Mutex
	left map[string]time.Duration // by the UID of the task
}

func (s *sluggish) Verify(ctx context.Context, _, uid string, _ int64, _ time.Time) (gitstoreapi.Verification, error) {
	began := time.Now()
	s.mu.Lock()
	left := s.left[uid]
	s.mu.Unlock()
	var err error
	select {
	case <-time.After(left):
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left[uid] -= time.Since(began)
	return gitstoreapi.Verification{}, err
}

func TestVerificationsThatTakeLongLeaveTheirSlotsToThoseThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		code := &sluggish{left: map[string]time.Duration{}}
		d := NewOnDemand(&verdicts{}, code, logr.Discard())
		var all sync.WaitGroup
		for n := range demandsInAll + 2 { // of one tenant who has that many namespaces
			uid := fmt.Sprintf("uid-%d", n)
			code.left[uid] = 5 * time.Minute
			all.Go(func() {
				if err := d.Verify(t.Context(), history.Task{Namespace: fmt.Sprintf("greedy-%d", n), UID: uid}, 1, time.Now()); err != nil {
					t.Errorf("a verification of five minutes: %v", err)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		if err := d.Verify(t.Context(), history.Task{Namespace: "other", UID: "other"}, 1, time.Now()); err != nil || time.Since(began) > 2*minTurn {
			t.Errorf("the verification of another namespace took %s: %v", time.Since(began), err)
		}
		all.Wait()
	})
}
