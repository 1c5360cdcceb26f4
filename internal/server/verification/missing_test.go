package verification

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
)

// A gitstore that was restored from an older copy lacks checkpoints that nobody looks at.
func TestWhoeverWaitsForACheckpointLearnsWhichOthersAreMissing(t *testing.T) {
	since := time.Unix(1000, 0)
	requested := history.Verification{Task: history.Task{UID: "uid"}, Requested: true, Since: since, Conversation: true, Numbers: []int64{7}}
	pass := history.Verification{Task: history.Task{UID: "uid"}, Pass: true, Numbers: []int64{7}}
	missing := history.Verdict{Number: 5, Damage: "the gitstore does not have it"}
	lost := map[int64][]gitstoreapi.Damage{7: {{Part: gitstoreapi.PartCode, Kind: "commit", What: "is not in the gitstore"}}}
	for name, c := range map[string]struct {
		part  history.Verification
		has   []int64
		lost  map[int64][]gitstoreapi.Damage
		want  []history.Verdict
		since time.Time
	}{
		"all are there": {requested, []int64{7, 6, 5, 3}, nil, []history.Verdict{{Number: 7}}, since},
		"one is not":    {requested, []int64{3, 6, 7}, nil, []history.Verdict{{Number: 7}, missing}, since},
		"nor is the one that is waited for": {requested, []int64{3, 6}, lost, []history.Verdict{
			{Number: 7, Damage: "in the gitstore, its code is not in the gitstore"}, missing}, since},
		"the daily pass asks for its own": {pass, nil, nil, []history.Verdict{{Number: 7}}, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			var asked time.Time
			store := &due{parts: []history.Verification{c.part}, pushed: []int64{3, 5, 6, 7}}
			v := &Verifier{Store: store, Code: gitstore{inventory: inventory{numbers: c.has}, damage: c.lost, since: &asked}}
			if _, err := v.Step(t.Context()); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, store.verdicts); d != "" {
				t.Errorf("verdicts (-want +got):\n%s", d)
			}
			if !asked.Equal(c.since) {
				t.Errorf("what was verified before %s is verified again, want before %s", asked, c.since)
			}
		})
	}
}

func TestNothingIsSaidToBeMissingByAGitstoreThatCannotSay(t *testing.T) {
	for name, err := range map[string]error{
		"it is of an earlier version": gitstoreapi.New(gitstoreapi.NotFound, "there is nothing at this URL"),
		"it fails":                    errors.New("git failed"),
	} {
		t.Run(name, func(t *testing.T) {
			store := &due{pushed: []int64{6, 7}, parts: []history.Verification{{Task: history.Task{UID: "uid"}, Requested: true, Numbers: []int64{7}}}}
			v := &Verifier{Store: store, Code: gitstore{inventory: inventory{fails: err}}}
			if _, err := v.Step(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(store.verdicts) > 0 || len(store.postponed) != 1 {
				t.Errorf("verdicts %v, put off %v; want the request to be put off", store.verdicts, store.postponed)
			}
		})
	}
}
