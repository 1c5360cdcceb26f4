//go:build e2e && soak

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/refname"
)

// verb is an operation that is requested again and again, while something is killed each time.
type verb struct {
	name string
	// begin makes what the operation needs.
	begin func(ctx context.Context, o *ordeal)
	// ask requests the operation for the nth time, from 1, and does not wait.
	ask func(ctx context.Context, o *ordeal, n int)
	// check waits until that is done, and checks that it was done exactly, and once.
	check func(ctx context.Context, o *ordeal, n int)
}

// ordeal is a verb at work.
type ordeal struct {
	*world
	// states are fingerprints of the worktree that the verb goes between.
	states []string
	pushed pushed
}

var verbs = []verb{
	{"a rewind by paths", beginPicky, askForPaths, checkFiles},
	{"an undo", beginUndo, askForUndo, checkFiles},
	{"a fork of eight", beginFinished, askForEight, checkEight},
	{"a start with copied files", beginFinished, askForCopies, checkCopies},
	{"a publish", beginPublished, askForPublish, checkPublish},
	{"a checkpoint's branch", beginFinished, askForBranch, checkBranch},
	{"the deletion of surplus checkpoints", beginPruned, askForCheckpoint, checkPruned},
	{"the healing of a damaged checkpoint", beginHealed, askForHealing, checkHealed},
}

// Serial: it kills components that every task needs.
var _ = Describe("an operation during which something is killed", Serial, Label("kill", "slow"), func() {
	w := newWorld()

	for _, v := range verbs {
		It("is carried out once, and leaves nothing behind: "+v.name, SpecTimeout(pick(10*time.Minute, 3*time.Hour)), func(ctx SpecContext) {
			o := &ordeal{world: w}
			v.begin(ctx, o)
			struck, kills := newStrikes(ctx, w, dice()), pick(1, 40)
			struck.spare("agent", "shim", "kubelet", "containerd") // they have specs of their own
			for n := 1; struck.total() < kills; n++ {
				Expect(ctx.Err()).NotTo(HaveOccurred(), "after %d kills", struck.total())
				v.ask(ctx, o, n)
				pause(ctx, time.Duration(struck.random.IntN(3000))*time.Millisecond)
				struck.one()
				v.check(ctx, o, n)
			}
			reportKills(struck.count)
			AddReportEntry("kills", fmt.Sprintf("%s: %d kills", v.name, struck.total()))
			w.untilSystemReady(ctx, restartTime)
			w.expectNothingLeft(ctx)
		})
	}
})

// spare takes kinds out of what is killed.
func (s *strikes) spare(names ...string) {
	s.kinds = slices.DeleteFunc(s.kinds, func(kind strike) bool { return slices.Contains(names, kind.name) })
}

// beginPicky makes a task that was taken from one state to another.
func beginPicky(ctx context.Context, o *ordeal) {
	o.create(ctx, o.newTask("work", idle...))
	for _, state := range []string{"even", "odd"} {
		o.inAgent(ctx, "work", "cd /workspace; mkdir -p picked; echo "+state+" > picked/"+state+".txt; echo "+state+" > picked/both.txt")
		o.take(ctx, "work", state)
		o.states = append(o.states, o.inAgent(ctx, "work", fingerprint))
	}
}

func askForPaths(ctx context.Context, o *ordeal, n int) {
	to := []string{"odd", "even"}[n%2]
	o.requestRewind(ctx, "work", fmt.Sprintf("op-%d", n), to, func(r *clewv1.Rewind) {
		r.Scope, r.Paths = clewv1.RewindCode, []string{"picked/"}
	})
}

// beginUndo makes a task whose last rewind can be undone.
func beginUndo(ctx context.Context, o *ordeal) {
	beginPicky(ctx, o)
	slices.Reverse(o.states) // the first undo leads back to the second state
	o.rewind(ctx, "work", "op-0", "even", func(r *clewv1.Rewind) { r.Scope = clewv1.RewindCode })
}

func askForUndo(ctx context.Context, o *ordeal, n int) {
	undo := clewv1.Rewind{ID: fmt.Sprintf("op-%d", n), To: clewv1.RewindTarget{UndoOf: fmt.Sprintf("op-%d", n-1)}}
	o.patchSpec(ctx, "work", map[string]any{"rewind": undo})
}

// checkFiles checks that the worktree is in the state of the nth operation: the first one of an
// odd n.
func checkFiles(ctx context.Context, o *ordeal, n int) {
	GinkgoHelper()
	o.untilRewound(ctx, "work", fmt.Sprintf("op-%d", n), restartTime)
	Expect(o.inAgent(ctx, "work", fingerprint)).To(Equal(o.states[(n+1)%2]), "the files after operation %d", n)
}

// beginFinished makes a completed task.
func beginFinished(ctx context.Context, o *ordeal) {
	o.create(ctx, o.newTask("work", "sh", "-c", "mkdir -p copied; echo one > copied/one.txt; echo two > two.txt"))
	o.untilState(ctx, "work", 3*time.Minute, clewv1.ReasonCompleted)
	o.untilDurable(ctx, "work-1")
}

func askForEight(ctx context.Context, o *ordeal, n int) {
	GinkgoHelper()
	f := newFork(o.namespace, fmt.Sprintf("fork-%d", n), "work", "work-1", "")
	f.Spec.Variants = nil
	for i := range 8 {
		f.Spec.Variants = append(f.Spec.Variants, clewv1.ForkVariant{Name: fmt.Sprintf("v-%d-%d", n, i)})
	}
	Expect(o.apply(ctx, f)).To(Succeed())
}

// checkEight checks that the nth fork made its eight tasks, each from the source's files, and
// deletes them.
func checkEight(ctx context.Context, o *ordeal, n int) {
	GinkgoHelper()
	f := &clewv1.Fork{}
	o.eventually(ctx, func() (int32, error) {
		err := o.get(ctx, fmt.Sprintf("fork-%d", n), f)
		return f.Status.TaskCount, err
	}).WithTimeout(restartTime).Should(BeEquivalentTo(8))
	tasks := &clewv1.TaskList{}
	Expect(o.kube.List(ctx, tasks, client.InNamespace(o.namespace), client.MatchingLabels{clewv1.LabelFork: f.Name})).To(Succeed())
	Expect(tasks.Items).To(HaveLen(8))
	for _, t := range f.Status.Tasks {
		o.untilState(ctx, t.Name, restartTime, clewv1.ReasonCompleted)
		o.expectTreeOf(ctx, t.Name, "work")
	}
	for i := range tasks.Items {
		Expect(o.kube.Delete(ctx, &tasks.Items[i])).To(Succeed())
	}
}

// expectTreeOf checks that the last checkpoint of a task has the same files as that of another.
func (w *world) expectTreeOf(ctx context.Context, task, other string) {
	GinkgoHelper()
	tree := func(name string) string {
		own := w.untilListed(ctx, name)
		return own[len(own)-1].Status.Tree
	}
	Expect(tree(task)).To(Equal(tree(other)), "the files of task %s", task)
}

func askForCopies(ctx context.Context, o *ordeal, n int) {
	GinkgoHelper()
	t := o.newTask(fmt.Sprintf("copy-%d", n), "sh", "-c", "echo two > two.txt")
	t.Spec.StartFrom = &clewv1.StartFrom{
		TaskRef: clewv1.NameReference{Name: "work"}, At: &clewv1.StartPoint{CheckpointNumber: ptr.To[int64](1)}, CopyFiles: []string{"copied/"},
	}
	o.create(ctx, t)
}

func checkCopies(ctx context.Context, o *ordeal, n int) {
	GinkgoHelper()
	name := fmt.Sprintf("copy-%d", n)
	o.untilState(ctx, name, restartTime, clewv1.ReasonCompleted)
	o.expectTreeOf(ctx, name, "work")
	Expect(o.kube.Delete(ctx, o.task(ctx, name))).To(Succeed())
}

// beginPublished makes a completed task whose repository may be pushed to.
func beginPublished(ctx context.Context, o *ordeal) {
	o.pushed = o.newPushed(ctx)
	t := o.newTask("work", "sh", "-c", "echo one > one.txt")
	t.Spec.Repository = &clewv1.Repository{URL: o.pushed.url, CredentialsSecretRef: &clewv1.NameReference{Name: "git"}}
	o.create(ctx, t)
	o.untilState(ctx, "work", 3*time.Minute, clewv1.ReasonCompleted)
}

func askForPublish(ctx context.Context, o *ordeal, n int) {
	o.patchSpec(ctx, "work", map[string]any{"publish": map[string]any{"branch": fmt.Sprintf("clew/op-%d", n)}})
}

// checkPublish checks that the nth branch has one commit for the work, and that there is no
// branch but those that were asked for.
func checkPublish(ctx context.Context, o *ordeal, n int) {
	GinkgoHelper()
	branch := fmt.Sprintf("clew/op-%d", n)
	o.eventually(ctx, func() (string, error) {
		t := &clewv1.Task{}
		err := o.get(ctx, "work", t)
		if err != nil || t.Status.Publish == nil || !meta.IsStatusConditionTrue(t.Status.Conditions, clewv1.TaskPublished) {
			return "", err
		}
		return t.Status.Publish.Ref, nil
	}).WithTimeout(restartTime).Should(Equal("refs/heads/" + branch))
	Expect(o.pushed.git(ctx, "rev-parse "+branch)).To(Equal(o.task(ctx, "work").Status.Publish.Commit))
	Expect(o.pushed.git(ctx, "log --format='%an: %s' "+branch)).To(Equal("Clew: Work of the Clew task work\nAnn: first"))
	Expect(strings.Fields(o.pushed.git(ctx, "for-each-ref --format='%(refname)'"))).To(HaveLen(n + 1))
}

func askForBranch(ctx context.Context, o *ordeal, n int) {
	GinkgoHelper()
	patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/branches","value":[{"name":"op-%d"}]}]`, n)
	if n == 1 {
		patch = strings.Replace(patch, "replace", "add", 1)
	}
	_, err := o.kubectlIn(ctx, nil, "patch", "checkpoint", "work-1", "--type=json", "-p", patch)
	Expect(err).NotTo(HaveOccurred())
}

// checkBranch checks that the gitstore has the nth branch, and no longer the one before.
func checkBranch(ctx context.Context, o *ordeal, n int) {
	GinkgoHelper()
	name := fmt.Sprintf("op-%d", n)
	c := &clewv1.Checkpoint{}
	o.eventually(ctx, func() ([]clewv1.CheckpointBranchStatus, error) {
		err := o.get(ctx, "work-1", c)
		return c.Status.Branches, err
	}).WithTimeout(restartTime).Should(HaveExactElements(And(HaveField("Name", name), HaveField("State", clewv1.BranchMade))))
	list := "git -c safe.directory='*' --git-dir " + o.repository() + " for-each-ref --format='%(refname) %(objectname)' refs/heads/clew/work"
	Eventually(ctx, func() (string, error) { return o.tryGitstore(ctx, list) }).WithTimeout(restartTime).
		Should(HavePrefix(refname.Branch("work", name) + " " + c.Status.Branches[0].Commit + "\n"))
}

// beginPruned makes a task that keeps two Checkpoint objects.
func beginPruned(ctx context.Context, o *ordeal) {
	t := o.newTask("work", idle...)
	t.Spec.CheckpointPolicy.Retention.KeepLast = ptr.To[int32](2)
	o.create(ctx, t)
	o.untilAgentRuns(ctx, "work", 3*time.Minute)
}

func askForCheckpoint(ctx context.Context, o *ordeal, n int) {
	GinkgoHelper()
	o.inAgent(ctx, "work", fmt.Sprintf("echo %d > /workspace/n.txt", n))
	Expect(o.apply(ctx, &clewv1.Checkpoint{
		TypeMeta:   metav1.TypeMeta{APIVersion: clewv1.GroupVersion.String(), Kind: "Checkpoint"},
		ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: fmt.Sprintf("op-%d", n)},
		Spec:       clewv1.CheckpointSpec{TaskRef: clewv1.NameReference{Name: "work"}, Retention: clewv1.CheckpointByPolicy},
	})).To(Succeed())
}

// checkPruned checks that the nth checkpoint was taken, and that only the last two have objects.
func checkPruned(ctx context.Context, o *ordeal, n int) {
	GinkgoHelper()
	o.eventually(ctx, func(g Gomega) {
		own := o.checkpoints(ctx, "work")
		g.Expect(len(own)).To(BeNumerically("<=", 2))
		g.Expect(own).To(ContainElement(HaveField("Name", fmt.Sprintf("op-%d", n))))
		g.Expect(o.task(ctx, "work").Status.CheckpointCount).To(BeNumerically(">=", n))
	}).WithTimeout(restartTime).Should(Succeed())
}
