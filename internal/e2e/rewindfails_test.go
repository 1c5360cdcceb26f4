//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/onsi/gomega"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
)

// untilRewindFails waits for the end of a rewind that cannot be carried out, and
// prints what a person sees of it.
func (w *world) untilRewindFails(task, id, reason string) {
	w.Helper()
	w.until("rewind "+id+" has failed", 3*time.Minute, func() error {
		r := w.task(task).Status.Rewind
		if r == nil || r.ID != id || r.State == clewv1.OperationInProgress {
			return fmt.Errorf("status.rewind is %+v", r)
		}
		if r.State != clewv1.OperationFailed || r.Reason != reason {
			w.Fatalf("rewind %s ended %s, %s: %s", id, r.State, r.Reason, r.Message)
		}
		return nil
	})
	w.show(task)
}

// A rewind and a resume are asked for apart from each other, so their ids may be
// the same.
func TestARewindMayHaveTheIDOfAResume(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	w.create(w.newTask("same", idle...))
	w.inAgent("same", `echo good > /workspace/mark`)
	w.take("same", "same-good")
	w.inAgent("same", `echo bad > /workspace/mark`)
	w.patchSpec("same", map[string]any{"operatingMode": "Suspended"})
	w.untilState("same", 2*time.Minute, clewv1.ReasonSuspended)
	w.patchSpec("same", map[string]any{"operatingMode": "Running", "resume": map[string]any{"id": "1", "prompt": "Go on."}})
	w.untilAgentRuns("same", 3*time.Minute)

	w.rewind("same", "1", "same-good")

	g.Expect(w.inAgent("same", "cat /workspace/mark")).To(gomega.Equal("good\n"))
	w.show("same")
}

// What is in the way of a rewind is told, nothing is changed, the agent goes on,
// and a corrected rewind works.
func TestARewindThatCannotBeDoneLeavesTheTaskAsItWas(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	w.create(w.newTask("failing", idle...))
	w.inAgent("failing", `echo one > /workspace/mark`)
	w.take("failing", "failing-one")
	w.untilDurable("failing-one")
	w.inAgent("failing", `echo two > /workspace/mark; cd /workspace; git branch taken`)
	w.take("failing", "failing-two")
	w.untilDurable("failing-two")
	w.inAgent("failing", `echo three > /workspace/mark`)

	w.requestRewind("failing", "branch", "failing-one", func(r *clewv1.Rewind) { r.Preserve, r.Branch = clewv1.PreserveBranch, "taken" })
	w.untilRewindFails("failing", "branch", clewv1.ReasonBranchExists)
	g.Expect(w.inAgent("failing", "cat /workspace/mark")).To(gomega.Equal("three\n"))

	w.damageTarget("failing", "failing-two")
	w.requestRewind("failing", "damaged", "failing-two", func(r *clewv1.Rewind) { r.Preserve = clewv1.PreserveDiscard })
	w.untilRewindFails("failing", "damaged", clewv1.ReasonCheckpointCorrupted)
	g.Expect(w.inAgent("failing", "cat /workspace/mark")).To(gomega.Equal("three\n"))

	w.rewind("failing", "corrected", "failing-one", func(r *clewv1.Rewind) { r.Preserve = clewv1.PreserveDiscard })
	g.Expect(w.inAgent("failing", "cat /workspace/mark")).To(gomega.Equal("one\n"))
}

// damageTarget overwrites, on the task's volume, the blob of the file mark as the
// checkpoint has it.
func (w *world) damageTarget(task, checkpoint string) {
	w.Helper()
	ckpt := &clewv1.Checkpoint{}
	if err := w.get(checkpoint, ckpt); err != nil {
		w.Fatal(err)
	}
	pod := w.untilAgentRuns(task, 3*time.Minute)
	script := `set -eu
cd ` + resources.StatePath + `/git/objects
id="$(git --git-dir=.. rev-parse ` + ckpt.Status.Commit + `:mark)"
loose="$(echo "$id" | cut -c1-2)/$(echo "$id" | cut -c3-)"
if [ -e "$loose" ]; then
  chmod u+w "$loose"; printf damaged > "$loose"
else
  for index in pack/*.idx; do
    offset="$(git show-index < "$index" | grep " $id " | cut -d' ' -f1 || true)"
    [ -n "$offset" ] || continue
    pack="${index%.idx}.pack"; chmod u+w "$pack"
    printf damaged | dd of="$pack" bs=1 seek="$((offset + 3))" conv=notrunc status=none
  done
fi
if git --git-dir=.. cat-file blob "$id" 2>/dev/null; then echo "the blob can still be read"; exit 1; fi`
	if out, err := w.kubectlIn(w.ctx, nil, "exec", pod.Name, "-c", "daemon", "--", "sh", "-c", script); err != nil {
		w.Fatalf("damage checkpoint %s: %v\n%s", checkpoint, err, out)
	}
}
