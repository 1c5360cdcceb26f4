package cli

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
)

// verified is the outcome of the verification of a checkpoint of the task worker.
func verified(number int64, state historyv1.VerificationState) historyv1.CheckpointVerification {
	return historyv1.CheckpointVerification{Task: "worker", Number: number, State: state, Since: metav1.NewMicroTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))}
}

func TestCheckpointVerify(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", "Running")
	named := b.checkpoint(task, 2)
	damaged := verified(2, historyv1.VerificationDamaged)
	damaged.Damage, damaged.IntactBefore, damaged.Healing = "in the gitstore, a.txt is missing", 1, "the volume has it"
	r := b.withHistory(map[string]any{
		"GET tasks/worker/checkpoints": historyv1.CheckpointList{Items: []historyv1.Checkpoint{
			{Number: 4}, {Number: 3, Durable: true, Lost: true}, {Number: 2, Durable: true}, {Number: 1, Durable: true}}},
		"GET tasks/worker/checkpoints/1/verification": verified(1, historyv1.VerificationIntact),
		"GET tasks/worker/checkpoints/2/verification": damaged,
	})
	const sentence = "checkpoint 2 of task worker is damaged: in the gitstore, a.txt is missing; checkpoint 1 is the nearest earlier one that is intact; the volume has it\n"
	out, _, err := b.clew("", "checkpoint", "verify", "worker")
	wantError(t, err, "not all checkpoints are intact: 1 of 2 checkpoints of task worker damaged")
	if code, print := Exit(err); code != 1 || !print {
		t.Errorf("the exit code is %d", code)
	}
	wantText(t, "output", sentence+"checkpoint 1 of task worker is intact\n", out)
	if !strings.Contains(r.query(), "since=2026-01-02T03%3A04%3A05Z") {
		t.Errorf("the second checkpoint was asked for with %q", r.query())
	}

	out, _, _ = b.clew("", "checkpoint", "verify", "worker", named.Name)
	wantText(t, "output", sentence, out)
	out, _ = b.must("checkpoint", "verify", "worker", "#1", "-o", "json")
	if list := decode[verificationList](t, out); len(list.Items) != 1 || list.Items[0].State != historyv1.VerificationIntact {
		t.Errorf("the JSON is %s", out)
	}
	for text, args := range map[string][]string{
		`no checkpoint "x"`:              {"worker", "x"},
		"missing argument TASK":          {},
		"the history has nothing of thi": {"worker", "9"},
	} {
		_, _, err := b.clew("", append([]string{"checkpoint", "verify"}, args...)...)
		wantError(t, err, text)
		if code, _ := Exit(err); len(args) > 0 && code != 2 {
			t.Errorf("%v: the exit code is %d", args, code)
		}
	}
}

// TestCheckpointVerifyWaits: for its turn, and until the checkpoint has been verified.
func TestCheckpointVerifyWaits(t *testing.T) {
	b := newBench(t)
	b.task("worker", "Running")
	r := b.withHistory(nil)
	answers := []func(http.ResponseWriter){
		func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "1")
			failed(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "too many")
		},
		func(w http.ResponseWriter) {
			_ = json.NewEncoder(w).Encode(verified(1, historyv1.VerificationInProgress))
		},
		func(w http.ResponseWriter) { _ = json.NewEncoder(w).Encode(verified(1, historyv1.VerificationIntact)) },
	}
	r.answers = map[string]any{"GET tasks/worker/checkpoints/1/verification": func(w http.ResponseWriter) {
		answer := answers[0]
		answers = answers[1:]
		answer(w)
	}}
	out, _ := b.must("checkpoint", "verify", "worker", "1")
	wantText(t, "output", "checkpoint 1 of task worker is intact\n", out)

	answers = []func(http.ResponseWriter){func(w http.ResponseWriter) {
		_ = json.NewEncoder(w).Encode(verified(1, historyv1.VerificationInProgress))
	}}
	out, _ = b.must("checkpoint", "verify", "worker", "1", "--wait=false")
	wantText(t, "output", "checkpoint 1 of task worker is being verified\n", out)
}
