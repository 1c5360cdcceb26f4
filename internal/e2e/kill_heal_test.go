//go:build e2e && soak

package e2e

import (
	"context"
	"fmt"
	"os/exec"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/matchers"
)

// beginHealed makes a task with a checkpoint that is never damaged.
func beginHealed(ctx context.Context, o *ordeal) {
	o.create(ctx, o.newTask("work", idle...))
	o.inAgent(ctx, "work", "echo begun > /workspace/n.txt")
	o.take(ctx, "work", "begun")
}

// askForHealing damages the nth checkpoint in the gitstore, has the damage found, and has the
// task's next pod start, which brings what its volume has.
func askForHealing(ctx context.Context, o *ordeal, n int) {
	GinkgoHelper()
	o.inAgent(ctx, "work", fmt.Sprintf("echo %d > /workspace/n.txt", n))
	name := fmt.Sprintf("op-%d", n)
	damaged := o.take(ctx, "work", name)
	o.inGitstore(ctx, damageScript(o.repository(), damaged.Status.Commit+":n.txt"))
	Eventually(ctx, func() string { return o.verified(ctx, name) }).WithTimeout(restartTime).Should(ContainSubstring("is damaged"))
	o.untilIntact(ctx, name, metav1.ConditionFalse)
	o.requestRewind(ctx, "work", fmt.Sprintf("away-%d", n), "begun", func(r *clewv1.Rewind) { r.Scope = clewv1.RewindCode })
}

// checkHealed checks that the nth checkpoint is intact again, that the gitstore itself has the
// damaged object, and that it can be restored.
func checkHealed(ctx context.Context, o *ordeal, n int) {
	GinkgoHelper()
	name := fmt.Sprintf("op-%d", n)
	o.untilRewound(ctx, "work", fmt.Sprintf("away-%d", n), restartTime)
	Eventually(ctx, func() string { return o.verified(ctx, name) }).WithTimeout(restartTime).Should(ContainSubstring("is intact"))
	healed := o.untilIntact(ctx, name, metav1.ConditionTrue)
	blob := "git -c safe.directory='*' --git-dir " + o.repository() + " cat-file blob " + healed.Status.Commit + ":n.txt"
	Eventually(ctx, func() (string, error) { return o.tryGitstore(ctx, blob) }).WithTimeout(restartTime).Should(Equal(fmt.Sprintln(n)))

	back := fmt.Sprintf("back-%d", n)
	o.requestRewind(ctx, "work", back, name, func(r *clewv1.Rewind) { r.Scope = clewv1.RewindCode })
	o.untilRewound(ctx, "work", back, restartTime)
	Expect(o.inAgent(ctx, "work", "cat /workspace/n.txt")).To(Equal(fmt.Sprintln(n)))
}

// verified returns what `kubectl clew checkpoint verify` prints about a checkpoint of the task.
func (w *world) verified(ctx context.Context, checkpoint string) string {
	out, _ := exec.CommandContext(ctx, "kubectl", "clew", "--namespace", w.namespace, "checkpoint", "verify", "work", checkpoint).CombinedOutput()
	return string(out)
}

// untilIntact waits until a Checkpoint's condition Intact is as wanted.
func (w *world) untilIntact(ctx context.Context, name string, want metav1.ConditionStatus) *clewv1.Checkpoint {
	GinkgoHelper()
	c := &clewv1.Checkpoint{}
	w.eventually(ctx, func() (*clewv1.Checkpoint, error) { return c, w.get(ctx, name, c) }).WithTimeout(restartTime).
		Should(matchers.HaveCondition(clewv1.CheckpointIntact, want))
	return c
}
