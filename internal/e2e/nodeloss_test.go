//go:build e2e && soak && nodes

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/matchers"
)

// These specs need the development cluster with two nodes (NODES=2): the second one is cut off, and
// everything of Clew is on the first. make test-nodes runs them, and CLEW_SOAK=1 at full length.

// secondTaint is what keeps other pods off the second node.
const secondTaint = "clew-devcluster/second"

// noticed is how long Kubernetes may take to notice that a node is away, with some time to spare.
const noticed = 2 * time.Minute

// secondNode returns the name of the node that may be cut off.
func (w *world) secondNode(ctx context.Context) string {
	GinkgoHelper()
	list := &corev1.NodeList{}
	Expect(w.kube.List(ctx, list)).To(Succeed())
	for _, n := range list.Items {
		if slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == secondTaint }) {
			return n.Name
		}
	}
	Fail("the cluster has no second node: bring it up with NODES=2, such as by make test-nodes")
	return ""
}

// devcluster runs a command of the development cluster.
func devcluster(ctx context.Context, args ...string) {
	GinkgoHelper()
	run(exec.CommandContext(ctx, "go", append([]string{"run", "-C", devclusterFolder, "."}, args...)...))
}

// onSecond makes a task one whose pods prefer the second node, and go elsewhere soon after it is away.
func onSecond(node string, task *clewv1.Task) *clewv1.Task {
	task.Spec.NodeLoss = clewv1.NodeLoss{AfterSeconds: 30, Policy: clewv1.NodeLossReplace}
	spec := &task.Spec.Template.Spec
	spec.TerminationGracePeriodSeconds = ptr.To[int64](20) // how long a pod that nobody listens to takes to end
	spec.Tolerations = []corev1.Toleration{{Key: secondTaint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
		Weight: 100, Preference: corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}},
	}}}}
	return task
}

// cut cuts a node off, and waits until Kubernetes has noticed.
func (w *world) cut(ctx context.Context, node string) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) { devcluster(ctx, "node-heal", node) })
	devcluster(ctx, "node-cut", node)
	Eventually(ctx, func() (corev1.ConditionStatus, error) { return w.nodeReady(ctx, node) }).WithTimeout(noticed).ShouldNot(Equal(corev1.ConditionTrue))
}

func (w *world) nodeReady(ctx context.Context, name string) (corev1.ConditionStatus, error) {
	node := &corev1.Node{}
	if err := w.kube.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return "", err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status, nil
		}
	}
	return corev1.ConditionUnknown, nil
}

// lost is a pod that was lost with its node.
type lost struct {
	task, uid string
	pod       *corev1.Pod
	claim     types.UID
	attempt   int64
	// stored is what history and gitstore had of the attempt when another one had taken its place.
	stored string
}

// untilGoesOn waits until a task whose node is lost works elsewhere, on another volume.
func (w *world) untilGoesOn(ctx context.Context, l *lost) {
	GinkgoHelper()
	w.eventually(ctx, func() *clewv1.Task { return w.task(ctx, l.task) }).WithTimeout(3 * time.Minute).Should(SatisfyAll(
		HaveField("Status.Attempts", ContainElement(SatisfyAll(HaveField("Number", l.attempt), HaveField("Outcome", clewv1.AttemptNodeLost)))),
		WithTransform(state, BeElementOf(clewv1.ReasonRunning, clewv1.ReasonCompleting, clewv1.ReasonCompleted)),
	))
	task := w.task(ctx, l.task)
	last := task.Status.Attempts[len(task.Status.Attempts)-1]
	Expect(last.NodeName).NotTo(Equal(l.pod.Spec.NodeName))
	Expect(task.Status.ClaimName).To(Equal(l.task + ".2-workspace"))
	Expect(task.Status.ClaimUID).NotTo(BeEquivalentTo(l.claim))
	l.stored = w.storedOf(ctx, l)
}

// storedOf returns what history and gitstore have of an attempt, as its pod has sent it.
func (w *world) storedOf(ctx context.Context, l *lost) string {
	GinkgoHelper()
	return w.inPostgres(ctx, fmt.Sprintf(`SELECT 'entries', count(*), coalesce(max(e.sequence), 0) FROM entries e JOIN branches b ON b.id = e.branch_id WHERE b.task_uid = '%[1]s' AND e.attempt = %[2]d
		UNION ALL SELECT 'checkpoints', count(*), coalesce(max(c.number), 0) FROM checkpoints c JOIN tasks t ON t.id = c.task_id WHERE t.uid = '%[1]s' AND c.attempt = %[2]d
		UNION ALL SELECT 'calls', count(*), 0 FROM tool_calls c JOIN tasks t ON t.id = c.task_id WHERE t.uid = '%[1]s' AND c.attempt = %[2]d
		UNION ALL SELECT 'events', count(*), 0 FROM events WHERE task_uid = '%[1]s' AND attempt = %[2]d AND reason = 'CheckpointCreated'`, l.uid, l.attempt))
}

// expectFenced expects that nothing of a lost pod has come in since another one took its place, and that
// pod and claim are gone.
func (w *world) expectFenced(ctx context.Context, l *lost) {
	GinkgoHelper()
	w.eventually(ctx, func() bool { return apierrors.IsNotFound(w.get(ctx, l.pod.Name, &corev1.Pod{})) }).WithTimeout(4*time.Minute).
		Should(BeTrue(), "pod %s ends when its node is back", l.pod.Name)
	w.eventually(ctx, func() bool {
		return apierrors.IsNotFound(w.get(ctx, l.task+"-workspace", &corev1.PersistentVolumeClaim{}))
	}).WithTimeout(time.Minute).Should(BeTrue(), "the claim of pod %s is deleted after it", l.pod.Name)
	Expect(w.storedOf(ctx, l)).To(Equal(l.stored), "what is stored of attempt %d of task %s", l.attempt, l.task)
	refs := strings.Fields(w.inGitstore(ctx, "git -c safe.directory='*' --git-dir "+w.repository()+" for-each-ref --format='%(objectname)' refs/clew/"+l.uid+"/code"))
	w.eventually(ctx, func() (commits []string) { // the agent goes on, and its last one may just have been pushed
		for _, c := range w.checkpoints(ctx, l.task) {
			commits = append(commits, c.Status.Commit)
		}
		return commits
	}).WithTimeout(time.Minute).Should(ContainElements(refs), "each checkpoint of task %s that the gitstore has is in the history", l.task)
}

// originRefs returns the refs of the repository that the tasks of these specs work on.
func (w *world) originRefs(ctx context.Context) string {
	GinkgoHelper()
	return w.kubectl(ctx, "--namespace", originNamespace, "exec", "deploy/origin", "--", "git", "-c", "safe.directory=*", "--git-dir", "/srv/git/clew.git", "for-each-ref")
}

// transitionsOf returns the reasons of a task's timeline.
func (w *world) transitionsOf(ctx context.Context, task string) (reasons []string) {
	GinkgoHelper()
	for _, e := range w.timeline(ctx, task) {
		reasons = append(reasons, e.Reason)
	}
	return reasons
}

var _ = Describe("tasks on a node that is cut off", Serial, Label("nodes", "kill", "slow"), func() {
	w := newWorld()

	It("go on elsewhere, and nothing of their old pods comes in when the node is back", SpecTimeout(2*time.Hour), func(ctx SpecContext) {
		const calls = 30
		node, origin := w.secondNode(ctx), w.originRefs(ctx)
		for round := range pick(1, 10) {
			By(fmt.Sprintf("round %d", round+1))
			var pods []*lost
			for i := range 3 {
				name := fmt.Sprintf("round-%d-%d", round+1, i+1)
				w.create(ctx, onSecond(node, w.newTask(name, replay(calls, time.Second)...)))
				pods = append(pods, &lost{task: name})
			}
			for _, l := range pods {
				w.untilToolCalls(ctx, l.task, 7, 3*time.Minute)
				l.pod = w.untilAgentRuns(ctx, l.task, time.Minute)
				Expect(l.pod.Spec.NodeName).To(Equal(node))
				task := w.task(ctx, l.task)
				l.uid, l.claim, l.attempt = string(task.UID), types.UID(task.Status.ClaimUID), task.Status.Attempts[len(task.Status.Attempts)-1].Number
			}
			w.cut(ctx, node)
			away := time.Now()
			for _, l := range pods {
				w.untilGoesOn(ctx, l)
			}
			GinkgoWriter.Printf("round %d: three tasks went on elsewhere %s after Kubernetes had noticed\n", round+1, time.Since(away).Round(time.Second))
			devcluster(ctx, "node-heal", node)
			for _, l := range pods {
				w.expectFenced(ctx, l)
				w.untilState(ctx, l.task, 5*time.Minute, clewv1.ReasonCompleted)
				w.expectCallsOnce(ctx, l.task, calls)
				Expect(w.storedOf(ctx, l)).To(Equal(l.stored))
				Expect(w.task(ctx, l.task).Status.FormerClaims).To(BeEmpty())
				Expect(w.transitionsOf(ctx, l.task)).To(ContainElements(clewv1.EventNodeUnreachable, clewv1.EventNodeLost, clewv1.EventVolumeLost))
			}
			reportCount(len(pods), "pods lost with their node")
		}
		Expect(w.originRefs(ctx)).To(Equal(origin))
		w.expectDurableCheckpointsExact(ctx, calls, "round-1-1", "round-1-2", "round-1-3")
	})

	It("go on with the same volume if the node is out of service and another one can attach it", SpecTimeout(20*time.Minute), func(ctx SpecContext) {
		const calls = 40
		node := w.secondNode(ctx)
		task := onSecond(node, w.newTask("moves", replay(calls, time.Second)...))
		task.Spec.NodeLoss.Policy = clewv1.NodeLossWait
		class := w.freeVolume(ctx, "moves-workspace")
		task.Spec.Workspace.StorageClassName = &class
		w.create(ctx, task)
		w.untilToolCalls(ctx, "moves", 7, 3*time.Minute)
		pod, claim := w.untilAgentRuns(ctx, "moves", time.Minute), w.task(ctx, "moves").Status.ClaimUID
		w.cut(ctx, node)
		for _, container := range []string{clewv1.AgentContainer, "daemon"} { // the node is switched off
			Expect(killContainer(pod, container)).To(Succeed())
		}
		w.untilState(ctx, "moves", time.Minute, clewv1.ReasonNodeUnreachable)
		w.taint(ctx, node)
		w.untilState(ctx, "moves", 5*time.Minute, clewv1.ReasonCompleted)
		moved := w.task(ctx, "moves")
		Expect(moved.Status.ClaimUID).To(Equal(claim))
		Expect(moved.Status.ClaimName).To(BeEmpty())
		Expect(moved.Status.Attempts[0].Outcome).To(Equal(clewv1.AttemptNodeLost))
		w.expectCallsOnce(ctx, "moves", calls)
		Expect(w.transitionsOf(ctx, "moves")).NotTo(ContainElement(clewv1.EventVolumeLost))
		Expect(moved.Status.LostRecords).To(BeZero())
	})

	It("do not hold up their deletion, and are gone when the node is back", SpecTimeout(15*time.Minute), func(ctx SpecContext) {
		node := w.secondNode(ctx)
		w.create(ctx, onSecond(node, w.newTask("deleted", replay(200, time.Second)...)))
		pod := w.untilAgentRuns(ctx, "deleted", 3*time.Minute)
		w.cut(ctx, node)
		Expect(w.kube.Delete(ctx, w.task(ctx, "deleted"))).To(Succeed())
		w.eventually(ctx, func() bool { return apierrors.IsNotFound(w.get(ctx, "deleted", &clewv1.Task{})) }).WithTimeout(time.Minute).
			Should(BeTrue(), "the Task is gone 30 seconds after its node was missed")
		devcluster(ctx, "node-heal", node)
		w.eventually(ctx, func() bool { return apierrors.IsNotFound(w.get(ctx, pod.Name, &corev1.Pod{})) }).WithTimeout(4 * time.Minute).Should(BeTrue())
		Eventually(ctx, func() bool {
			return apierrors.IsNotFound(w.get(ctx, "deleted-workspace", &corev1.PersistentVolumeClaim{}))
		}).WithTimeout(time.Minute).Should(BeTrue())
	})
})

// taint marks a node as out of service until the spec ends.
func (w *world) taint(ctx context.Context, node string) {
	GinkgoHelper()
	w.kubectl(ctx, "taint", "node", node, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
	DeferCleanup(func(ctx SpecContext) { w.kubectl(ctx, "taint", "node", node, "node.kubernetes.io/out-of-service-") })
}

// freeVolume makes a volume for a claim that every node can attach, and returns its storage class.
func (w *world) freeVolume(ctx context.Context, claim string) (class string) {
	GinkgoHelper()
	class = w.namespace + "-" + claim
	folder := nodeFolder(class)
	onNode("mkdir", "-p", folder)
	onNode("chmod", "0777", folder)
	volume := staticVolume(w.namespace, claim, class, "1Gi", folder)
	Expect(w.kube.Create(ctx, volume)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		_ = w.kube.Delete(ctx, volume)
		onNode("rm", "-rf", folder)
	})
	return class
}

var _ = Describe("tasks that sleep without a volume", Serial, Label("nodes", "slow"), func() {
	w := newWorld()

	It("wake on another node", SpecTimeout(40*time.Minute), func(ctx SpecContext) {
		const calls = 60 // two minutes: no task ends while others have yet to start
		node := w.secondNode(ctx)
		var names []string
		for i := range pick(5, 20) {
			names = append(names, fmt.Sprintf("sleeper-%d", i+1))
			task := onSecond(node, w.newTask(names[i], replay(calls, 2*time.Second)...))
			task.Spec.Workspace.WhenSuspended = clewv1.WhenSuspendedRelease
			w.create(ctx, task)
		}
		for _, name := range names {
			w.untilToolCalls(ctx, name, 2, 5*time.Minute)
			w.patchSpec(ctx, name, map[string]any{"operatingMode": "Suspended"})
		}
		slept := map[string][]historyv1.ConversationEntry{}
		for _, name := range names {
			task := w.untilState(ctx, name, 5*time.Minute, clewv1.ReasonSuspended)
			Expect(task.Status.Attempts[0].NodeName).To(Equal(node))
			w.eventually(ctx, func() *clewv1.Task { return w.task(ctx, name) }).WithTimeout(5 * time.Minute).
				Should(matchers.HaveReason(clewv1.TaskVolumeReleased, clewv1.ReasonReleased))
			slept[name] = w.conversation(ctx, name)
		}
		Eventually(ctx, func() ([]corev1.PersistentVolumeClaim, error) {
			claims := &corev1.PersistentVolumeClaimList{}
			return claims.Items, w.kube.List(ctx, claims, client.InNamespace(w.namespace))
		}).WithTimeout(2*time.Minute).Should(BeEmpty(), "volumes while all tasks are asleep")
		for _, name := range names {
			w.patchSpec(ctx, name, map[string]any{"operatingMode": "Running", "resume": clewv1.Resume{ID: "wake", Placement: clewv1.PlacementOtherNode}})
		}
		for _, name := range names {
			task := w.untilState(ctx, name, 10*time.Minute, clewv1.ReasonCompleted)
			last := task.Status.Attempts[len(task.Status.Attempts)-1]
			Expect(last.NodeName).NotTo(Or(BeEmpty(), Equal(node)), "task %s", name)
			Expect(w.conversation(ctx, name)[:len(slept[name])]).To(Equal(slept[name]), "task %s remembers all", name)
			w.expectCallsOnce(ctx, name, calls)
		}
		reportCount(len(names), "tasks woken on another node")
	})
})
