//go:build e2e

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// untilRewindFails waits for the end of a rewind that cannot succeed, and prints what a
// user sees of it.
func (w *world) untilRewindFails(ctx context.Context, task, id, reason string) {
	GinkgoHelper()
	w.eventually(ctx, func() *clewv1.OperationStatus { return w.task(ctx, task).Status.Rewind }).WithTimeout(3*time.Minute).Should(
		Satisfy(func(status *clewv1.OperationStatus) bool { return ended(status, id) }), "rewind %s has ended", id)
	Expect(w.task(ctx, task).Status.Rewind).To(HaveValue(SatisfyAll(
		HaveField("ID", id), HaveField("State", clewv1.OperationFailed),
		HaveField("Reason", reason))))
	w.show(ctx, task)
}

var _ = Describe("the request of a rewind", func() {
	w := newWorld()

	// Rewinds and resumes are requested independently, so their ids may be equal.
	It("may have the id of a resume", func(ctx SpecContext) {
		w.create(ctx, w.newTask("same", idle...))
		w.inAgent(ctx, "same", `echo good > /workspace/mark`)
		w.take(ctx, "same", "same-good")
		w.inAgent(ctx, "same", `echo bad > /workspace/mark`)
		w.patchSpec(ctx, "same", map[string]any{"operatingMode": "Suspended"})
		w.untilState(ctx, "same", 2*time.Minute, clewv1.ReasonSuspended)
		w.patchSpec(ctx, "same", map[string]any{"operatingMode": "Running", "resume": map[string]any{"id": "1", "prompt": "Go on."}})
		w.untilAgentRuns(ctx, "same", 3*time.Minute)

		w.rewind(ctx, "same", "1", "same-good")

		Expect(w.inAgent(ctx, "same", "cat /workspace/mark")).To(Equal("good\n"))
		w.show(ctx, "same")
	})

	It("fails with the reason and leaves the task as it was when it cannot be run; a corrected one works", func(ctx SpecContext) {
		w.create(ctx, w.newTask("failing", idle...))
		w.inAgent(ctx, "failing", `echo one > /workspace/mark`)
		w.take(ctx, "failing", "failing-one")
		w.untilDurable(ctx, "failing-one")
		w.inAgent(ctx, "failing", `echo two > /workspace/mark; cd /workspace; git branch taken`)
		w.take(ctx, "failing", "failing-two")
		w.untilDurable(ctx, "failing-two")
		w.inAgent(ctx, "failing", `echo three > /workspace/mark`)

		By("rewinding with a branch that exists already")
		w.requestRewind(ctx, "failing", "branch", "failing-one", func(r *clewv1.Rewind) { r.Preserve, r.Branch = clewv1.PreserveBranch, "taken" })
		w.untilRewindFails(ctx, "failing", "branch", clewv1.ReasonBranchExists)
		Expect(w.inAgent(ctx, "failing", "cat /workspace/mark")).To(Equal("three\n"))

		By("rewinding to a checkpoint that is corrupted on the volume, and intact in the gitstore")
		w.damageTarget(ctx, "failing", "failing-two")
		w.rewind(ctx, "failing", "damaged", "failing-two", func(r *clewv1.Rewind) { r.Preserve = clewv1.PreserveDiscard })
		Expect(w.inAgent(ctx, "failing", "cat /workspace/mark")).To(Equal("two\n"))

		By("rewinding to a good checkpoint")
		w.rewind(ctx, "failing", "corrected", "failing-one", func(r *clewv1.Rewind) { r.Preserve = clewv1.PreserveDiscard })
		Expect(w.inAgent(ctx, "failing", "cat /workspace/mark")).To(Equal("one\n"))
	})
})

// damageTarget overwrites, on the task's volume, the blob of the file "mark" in a checkpoint.
func (w *world) damageTarget(ctx context.Context, task, checkpoint string) {
	GinkgoHelper()
	ckpt := &clewv1.Checkpoint{}
	Expect(w.get(ctx, checkpoint, ckpt)).To(Succeed())
	pod := w.untilAgentRuns(ctx, task, 3*time.Minute)
	script := damageScript(daemonapi.StatePath+"/git", ckpt.Status.Commit+":mark")
	out, err := w.kubectlIn(ctx, nil, "exec", pod.Name, "-c", "daemon", "--", "sh", "-c", script)
	Expect(err).NotTo(HaveOccurred(), "damage checkpoint %s\n%s", checkpoint, out)
}

// damageScript is a shell script that overwrites every copy of a blob in a repository.
func damageScript(repository, blob string) string {
	return `set -eu
git() { command git -c safe.directory='*' --git-dir=` + repository + ` "$@"; }
cd ` + repository + `/objects
id="$(git rev-parse ` + blob + `)"
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
if git cat-file blob "$id" 2>/dev/null; then echo "the blob can still be read"; exit 1; fi`
}
