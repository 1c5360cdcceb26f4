//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// What stands before a rewind has to be out of the pod before anything is changed.
// While the gitstore has no room for it, the rewind waits and says so, nothing is
// lost, and it goes on when there is room again.
func TestARewindWhileTheQuotaIsFullWaitsAndSaysSo(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	w.create(w.newTask("full", idle...))
	w.inAgent("full", `echo one > /workspace/mark`)
	w.take("full", "full-one")
	makeRoom := w.fillQuota()
	last := w.untilQuotaRefuses("full")
	w.inAgent("full", `echo three > /workspace/mark`)

	w.requestRewind("full", "back", "full-one")

	w.until("the rewind waits for room, and says so", 5*time.Minute, func() error {
		task := w.task("full")
		r, n := task.Status.Rewind, len(task.Status.Attempts)
		if r == nil || r.State != clewv1.OperationInProgress || n < 2 || state(task) != clewv1.ReasonGitStoreRefused {
			return fmt.Errorf("task is %s: %s; status.rewind is %+v", state(task), conditionMessage(task), r)
		}
		return nil
	})
	g.Expect(conditionMessage(w.task("full"))).To(gomega.And(
		gomega.HavePrefix("the gitstore refuses the push: QuotaExceeded: the repositories of the namespace "+w.namespace+" take "),
		gomega.ContainSubstring("and its quota is "+w.namespaceQuota()), gomega.HaveSuffix("; it is tried again")))
	w.show("full")

	makeRoom()
	w.untilRewound("full", "back", 3*time.Minute)
	g.Expect(w.inAgent("full", "cat /workspace/mark")).To(gomega.Equal("one\n"))
	for _, c := range w.checkpoints("full") {
		w.untilDurable(c.Name)
	}
	w.show("full")
	w.rewind("full", "there", fmt.Sprintf("full-%d", w.task("full").Status.Rewind.FromCheckpoint))
	g.Expect(w.inAgent("full", "cat /workspace/mark")).To(gomega.Equal("three\n"), "what stood when the rewind was asked for")
	w.rewind("full", "further", last)
	g.Expect(w.inAgent("full", "cat /workspace/mark")).To(gomega.Equal(last + "\n"))
}

// untilQuotaRefuses takes checkpoints of a file mark that holds their name, until
// the gitstore, which measures now and then, has no room for one; its name is
// returned.
func (w *world) untilQuotaRefuses(task string) (checkpoint string) {
	w.Helper()
	taken := 0
	w.until("the quota is full", 3*time.Minute, func() error {
		if state(w.task(task)) == clewv1.ReasonGitStoreRefused {
			return nil
		}
		ckpt := &clewv1.Checkpoint{}
		if checkpoint != "" {
			if err := w.get(checkpoint, ckpt); err != nil {
				return err
			}
		}
		if checkpoint == "" || meta.IsStatusConditionTrue(ckpt.Status.Conditions, clewv1.CheckpointDurable) {
			taken++
			checkpoint = fmt.Sprintf("%s-more-%d", task, taken)
			w.inAgent(task, "echo "+checkpoint+" > /workspace/mark")
			w.ask(task, checkpoint)
		}
		return fmt.Errorf("the gitstore took %d checkpoints", taken)
	})
	return checkpoint
}

// ask applies a Checkpoint and waits for nothing.
func (w *world) ask(task, name string) {
	w.Helper()
	ckpt := &clewv1.Checkpoint{
		TypeMeta:   metav1.TypeMeta{APIVersion: clewv1.GroupVersion.String(), Kind: "Checkpoint"},
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec:       clewv1.CheckpointSpec{TaskRef: clewv1.NameReference{Name: task}, Message: "taken by a test"},
	}
	if err := w.apply(ckpt); err != nil {
		w.Fatalf("apply checkpoint: %v", err)
	}
}

// fillQuota takes what the gitstore allows this namespace, until makeRoom is called.
func (w *world) fillQuota() (makeRoom func()) {
	w.Helper()
	filler := w.repository() + "/filler"
	w.inGitstore(fmt.Sprintf("fallocate -l %s %s", w.namespaceQuota(), filler))
	w.Cleanup(func() {
		if _, err := w.tryGitstore(context.Background(), "rm -f "+filler); err != nil {
			w.Error(err)
		}
	})
	return func() { w.inGitstore("rm -f " + filler) }
}

func (w *world) namespaceQuota() string {
	w.Helper()
	gitstore := &appsv1.StatefulSet{}
	if err := w.kube.Get(w.ctx, client.ObjectKey{Namespace: systemNamespace, Name: "clew-gitstore"}, gitstore); err != nil {
		w.Fatal(err)
	}
	for _, arg := range gitstore.Spec.Template.Spec.Containers[0].Args {
		if quota, ok := strings.CutPrefix(arg, "--namespace-quota-bytes="); ok {
			return quota
		}
	}
	w.Fatal("the gitstore has no quota")
	return ""
}

// show logs what a person sees of a task: its status and its Events.
func (w *world) show(task string) {
	w.Helper()
	w.Logf("kubectl describe task %s\n%s\nkubectl get checkpoints\n%s\nkubectl get events\n%s", task,
		w.kubectl("describe", "tasks.clew.dev", task),
		w.kubectl("get", "checkpoints.clew.dev"),
		w.kubectl("get", "events", "--field-selector", "involvedObject.name="+task))
}
