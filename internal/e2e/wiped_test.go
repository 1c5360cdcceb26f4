//go:build e2e && soak

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/matchers"
)

// lostCluster is a second development cluster, which loses everything but the volumes of Postgres and
// the gitstore. Nothing of the first one is touched.
type lostCluster struct {
	*world
	node *node
	// empty is etcd as it was before anything was installed.
	empty string
	// kept are the folders of the volumes that survive, by their claims.
	kept map[string]string
	// repository is what the git host has, which is outside the cluster in truth.
	repository string
}

// Serial: it brings up another cluster beside the first, on the same machine.
var _ = Describe("a cluster that is lost, all but its Postgres and its gitstore", Serial, Label("slow", "soak"), func() {
	c := &lostCluster{world: &world{}, kept: map[string]string{}}

	BeforeEach(func(ctx SpecContext) { c.bringUp(ctx) }, NodeTimeout(30*time.Minute))

	It("is restored by its manifests: every task goes on, and each operation happened once", SpecTimeout(30*time.Minute), func(ctx SpecContext) {
		c.makeNamespace(ctx)
		p := c.newPushed(ctx)
		p.host(ctx, recordPushes)
		m := c.manifests(p)

		By("letting everything happen once")
		gitops := &syncer{world: c.world, manager: "argocd-controller", manifests: []client.Object{m.talk}}
		gitops.sync(ctx)
		c.untilToolCalls(ctx, "talk", 5, 3*time.Minute)
		m.talk.Spec.OperatingMode = clewv1.OperatingModeSuspended
		gitops.manifests = m.first()
		gitops.until(ctx, func(g Gomega) {
			g.Expect(state(c.task(ctx, "work"))).To(Equal(clewv1.ReasonRunning))
			g.Expect(state(c.task(ctx, "done"))).To(Equal(clewv1.ReasonCompleted))
			g.Expect(c.task(ctx, "done")).To(matchers.HaveCondition(clewv1.TaskPublished, metav1.ConditionTrue))
			g.Expect(state(c.task(ctx, "again"))).To(Equal(clewv1.ReasonCompleted))
			g.Expect(state(c.task(ctx, "talk"))).To(Equal(clewv1.ReasonSuspended))
		})
		c.eventually(ctx, func() string { return state(c.task(ctx, "fails")) }).WithTimeout(3 * time.Minute).Should(Equal(clewv1.ReasonAgentFailed))
		c.inAgent(ctx, "work", "echo marked > /workspace/work.txt")
		gitops.manifests = m.marked()
		gitops.until(ctx, func(g Gomega) {
			g.Expect(c.checkpointNamed(ctx, "mark").Status.Branches).To(ConsistOf(HaveField("Origin.Reason", clewv1.ReasonPublished)))
		})
		c.inAgent(ctx, "work", "echo later > /workspace/work.txt")
		gitops.manifests = m.rewound("back", clewv1.RewindTarget{CheckpointRef: &clewv1.NameReference{Name: "mark"}})
		gitops.until(ctx, func(g Gomega) { g.Expect(c.task(ctx, "work")).To(hasRewound("back")) })
		gitops.manifests = m.rewound("undo", clewv1.RewindTarget{UndoOf: "back"})
		gitops.until(ctx, func(g Gomega) {
			g.Expect(c.task(ctx, "work")).To(hasRewound("undo"))
			g.Expect(c.theFork(ctx, "try")).To(matchers.HaveCondition(clewv1.ForkComplete, metav1.ConditionTrue))
			g.Expect(state(c.task(ctx, "try-a"))).To(Equal(clewv1.ReasonRunning))
			g.Expect(c.task(ctx, "again").Status.Resume).To(HaveValue(HaveField("State", clewv1.OperationCompleted)))
		})
		c.patchSpec(ctx, "try-b", map[string]any{"operatingMode": "Suspended"})
		c.untilState(ctx, "try-b", 3*time.Minute, clewv1.ReasonSuspended)
		c.inAgent(ctx, "try-a", "echo tried > /workspace/tried.txt")
		c.take(ctx, "try-a", "tried")
		c.inAgent(ctx, "work", "echo last > /workspace/work.txt")
		c.take(ctx, "work", "last")
		gitops.manifests = append(m.all(), m.steady)
		gitops.sync(ctx)
		c.untilToolCalls(ctx, "steady", 10, 3*time.Minute)
		Expect(state(c.task(ctx, "talk"))).To(Equal(clewv1.ReasonSuspended))
		before := c.count(ctx)
		pushes := p.host(ctx, `sort "$R/pushes"`)
		mark := c.checkpointNamed(ctx, "mark")

		By("losing the cluster")
		c.lose(ctx, p)
		c.restore(ctx, p)

		By("applying all manifests, in no order, again and again")
		c.newSecret(ctx, p)
		gitops = &syncer{world: c.world, manager: "argocd-controller", manifests: append(m.all(), m.steady)}
		slices.Reverse(gitops.manifests)
		gitops.until(ctx, func(g Gomega) {
			for task, want := range map[string]string{
				"work": clewv1.ReasonRunning, "done": clewv1.ReasonCompleted, "again": clewv1.ReasonCompleted,
				"talk": clewv1.ReasonSuspended, "try-a": clewv1.ReasonRunning, "try-b": clewv1.ReasonSuspended,
			} {
				found := &clewv1.Task{}
				g.Expect(c.get(ctx, task, found)).To(Succeed(), task) // a Fork's tasks come after it
				g.Expect(state(found)).To(Equal(want), task)
			}
			g.Expect(c.task(ctx, "done")).To(matchers.HaveCondition(clewv1.TaskPublished, metav1.ConditionTrue))
			g.Expect(c.checkpointNamed(ctx, "mark").Status.Branches).To(ConsistOf(HaveField("Origin.Reason", clewv1.ReasonPublished)))
			g.Expect(c.theFork(ctx, "try")).To(matchers.HaveCondition(clewv1.ForkComplete, metav1.ConditionTrue))
		})
		c.untilState(ctx, "fails", 3*time.Minute, clewv1.ReasonAgentFailed)

		By("looking at where each stands")
		Expect(c.inAgent(ctx, "work", "cat /workspace/work.txt")).To(Equal("last\n"))
		Expect(c.inAgent(ctx, "try-a", "cat /workspace/tried.txt")).To(Equal("tried\n"))
		Expect(c.task(ctx, "work").Status.HandledOperations).To(ContainElements("Rewind/back", "Rewind/undo"))
		again := c.checkpointNamed(ctx, "mark")
		Expect(again.Status.Number).To(Equal(mark.Status.Number))
		Expect(again.Status.Commit).To(Equal(mark.Status.Commit))

		By("going on with those that had not ended")
		m.talk.Spec.OperatingMode, m.talk.Spec.Resume = clewv1.OperatingModeRunning, &clewv1.Resume{ID: "on"}
		gitops.sync(ctx)
		for _, task := range []string{"talk", "steady"} {
			c.untilState(ctx, task, 5*time.Minute, clewv1.ReasonCompleted)
		}
		Expect(c.task(ctx, "talk").Status.Resume).To(HaveValue(HaveField("State", clewv1.OperationCompleted)))
		c.expectCallsOnce(ctx, "talk", 30)
		c.expectCallsOnce(ctx, "steady", 60)

		By("counting what happened")
		Expect(p.host(ctx, `sort "$R/pushes"`)).To(Equal(pushes))
		after := c.count(ctx)
		for _, what := range []string{clewv1.EventTaskRewound, clewv1.EventTaskPublished, clewv1.EventTaskBranched, clewv1.EventTaskForked, "names"} {
			Expect(after[what]).To(Equal(before[what]), what)
			reportCount(after[what], "before and after the loss of a cluster: "+what)
		}
		c.expectNothingOrphaned(ctx)
	})
})

// manifests are those of one namespace, as they are in git.
type manifests struct {
	*lostCluster
	work, done, again, fails, talk, steady *clewv1.Task
	mark                                   *clewv1.Checkpoint
	try                                    *clewv1.Fork
}

func (c *lostCluster) manifests(p pushed) *manifests {
	m := &manifests{lostCluster: c,
		work: c.newTask("work", idle...), done: c.newTask("done", "sh", "-c", "echo one > one.txt"), again: c.newTask("again", "sh", "-c", "echo >> /workspace/runs.txt"),
		fails: c.newTask("fails", "sh", "-c", "exit 3"), talk: c.newTask("talk", replay(30, 2*time.Second)...), steady: c.newTask("steady", replay(60, 3*time.Second)...),
		mark: &clewv1.Checkpoint{
			TypeMeta:   metav1.TypeMeta{APIVersion: clewv1.GroupVersion.String(), Kind: "Checkpoint"},
			ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "mark"},
			Spec: clewv1.CheckpointSpec{
				TaskRef: clewv1.NameReference{Name: "work"}, Message: "Worth keeping",
				Branches: []clewv1.CheckpointBranch{{Name: "clew/mark", Push: clewv1.PushOrigin}},
			},
		},
		try: newFork(c.namespace, "try", "work", "mark", "try-a"),
	}
	m.try.Spec.Adopt = clewv1.AdoptLatest
	m.try.Spec.Variants = append(m.try.Spec.Variants, clewv1.ForkVariant{Name: "try-b"})
	for _, task := range []*clewv1.Task{m.work, m.done} {
		task.Spec.Repository = &clewv1.Repository{URL: p.url, CredentialsSecretRef: &clewv1.NameReference{Name: "git"}}
	}
	for _, task := range []*clewv1.Task{m.work, m.done, m.again, m.fails, m.talk, m.steady} {
		task.Spec.Adopt = clewv1.AdoptLatest
	}
	m.done.Spec.Publish = &clewv1.Publish{Branch: "clew/done"}
	m.fails.Spec.BackoffLimit = ptr.To[int32](0)
	m.steady.Spec.CheckpointPolicy.EveryToolCalls = ptr.To[int32](5)
	return m
}

// first are the manifests before any operation. That of the steady task follows last, since it must not have
// ended when the cluster is lost.
func (m *manifests) first() []client.Object {
	return []client.Object{m.work, m.done, m.again, m.talk, m.fails}
}

func (m *manifests) marked() []client.Object {
	m.again.Spec.Resume = &clewv1.Resume{ID: "more", Prompt: "And once more."}
	return append(m.first(), m.mark, m.try)
}

func (m *manifests) rewound(id string, to clewv1.RewindTarget) []client.Object {
	m.work.Spec.Rewind = &clewv1.Rewind{ID: id, To: to}
	return m.all()
}

func (m *manifests) all() []client.Object { return append(m.first(), m.mark, m.try) }

func (w *world) checkpointNamed(ctx context.Context, name string) *clewv1.Checkpoint {
	GinkgoHelper()
	c := &clewv1.Checkpoint{}
	Expect(w.get(ctx, name, c)).To(Succeed())
	return c
}

// bringUp makes the second cluster, with Clew, and takes it down after the spec.
func (c *lostCluster) bringUp(ctx SpecContext) {
	GinkgoHelper()
	instance := "15"
	if os.Getenv("CLEW_INSTANCE") == instance {
		instance = "14"
	}
	GinkgoT().Setenv("CLEW_INSTANCE", instance)
	program := filepath.Join(GinkgoT().TempDir(), "devcluster")
	run(exec.CommandContext(ctx, "go", "build", "-C", devclusterFolder, "-o", program, "."))
	c.node = &node{program: program}
	c.devcluster("down") // a run that was killed may have left it
	c.devcluster("up")
	DeferCleanup(func() {
		if CurrentSpecReport().Failed() && os.Getenv("CLEW_E2E_KEEP") == "1" {
			return
		}
		c.devcluster("down")
	})
	c.empty = filepath.Join(GinkgoT().TempDir(), "etcd")
	c.devcluster("save-etcd", c.empty)
	GinkgoT().Setenv("KUBECONFIG", strings.TrimSpace(c.devcluster("kubeconfig")))
	run(exec.CommandContext(ctx, "make", "-C", "../..", "demo-image"))
	c.install(ctx, nil)
	c.startHost(ctx)
}

func (c *lostCluster) devcluster(args ...string) string {
	GinkgoHelper()
	out, err := c.node.run(args...)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// install installs Clew with grants of namespaces, or upgrades it.
func (c *lostCluster) install(ctx context.Context, grants []string) {
	GinkgoHelper()
	values := filepath.Join(GinkgoT().TempDir(), "values.yaml")
	text := "historyGrants: []\n"
	if len(grants) > 0 {
		text = "historyGrants:\n" + strings.Join(grants, "\n") + "\n"
	}
	Expect(os.WriteFile(values, []byte(text), 0o600)).To(Succeed())
	run(exec.CommandContext(ctx, "make", "-C", "../..", "deploy", "DEPLOY_ARGS=--values "+values))
	c.connectTo()
}

// connectTo connects to the cluster, and keeps the namespace.
func (c *lostCluster) connectTo() {
	GinkgoHelper()
	namespace := c.namespace
	c.connect()
	c.namespace = namespace
}

// startHost starts the git host.
func (c *lostCluster) startHost(ctx context.Context) {
	GinkgoHelper()
	manifests := "../../hack/demo/manifests/"
	c.kubectl(ctx, "apply", "-f", manifests+"namespace.yaml")
	c.kubectl(ctx, "--namespace", originNamespace, "apply", "-f", manifests+"origin.yaml")
	c.kubectl(ctx, "--namespace", originNamespace, "rollout", "status", "deployment/origin", "--timeout=120s")
}

func (c *lostCluster) makeNamespace(ctx context.Context) {
	GinkgoHelper()
	c.namespace = "team"
	Expect(c.kube.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: c.namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}})).To(Succeed())
}

// newSecret makes the Secret with the password of the git host, which has another certificate now.
func (c *lostCluster) newSecret(ctx context.Context, p pushed) {
	GinkgoHelper()
	ca := c.kubectl(ctx, "get", "--raw", "/api/v1/namespaces/"+originNamespace+"/services/http:origin:80/proxy/ca.crt")
	Expect(c.kube.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "git"},
		StringData: map[string]string{"username": "demo", "password": p.secret, "ca.crt": ca},
	})).To(Succeed())
}

// lose empties etcd, and removes the volumes of all tasks.
func (c *lostCluster) lose(ctx context.Context, p pushed) {
	GinkgoHelper()
	c.repository = p.host(ctx, `tar -C "$R" -cf - . | base64 -w 0`)
	for _, claim := range []string{"data-clew-postgres-0", "repositories-clew-gitstore-0"} {
		c.kept[claim] = c.volumeFolder(ctx, systemNamespace, claim)
	}
	folders := filepath.Dir(c.kept["data-clew-postgres-0"])
	pods := &corev1.PodList{}
	Expect(c.kube.List(ctx, pods)).To(Succeed())
	c.devcluster("restore-etcd", c.empty)
	Eventually(ctx, func(g Gomega) { // the node of a lost cluster runs nothing
		for i := range pods.Items {
			for _, container := range pods.Items[i].Status.ContainerStatuses {
				g.Expect(processes(containerID(&pods.Items[i], container.Name))).To(BeEmpty(), pods.Items[i].Name)
			}
		}
	}).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
	entries, err := os.ReadDir(folders)
	Expect(err).NotTo(HaveOccurred())
	for _, entry := range entries {
		folder := filepath.Join(folders, entry.Name())
		if folder != c.kept["data-clew-postgres-0"] && folder != c.kept["repositories-clew-gitstore-0"] {
			Expect(os.RemoveAll(folder)).To(Succeed())
		}
	}
}

// restore follows the section "Restore into a new cluster" of the chart's README.
func (c *lostCluster) restore(ctx context.Context, p pushed) {
	GinkgoHelper()
	c.connectTo()
	nodes := &corev1.NodeList{}
	Eventually(ctx, func() ([]corev1.Node, error) { return nodes.Items, c.kube.List(ctx, nodes) }).WithTimeout(time.Minute).Should(HaveLen(1))
	for claim, folder := range c.kept {
		Expect(c.kube.Create(ctx, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "kept-" + claim},
			Spec: corev1.PersistentVolumeSpec{
				Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")},
				AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				StorageClassName:              "local-path",
				ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: systemNamespace, Name: claim},
				PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}},
				NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{nodes.Items[0].Labels[corev1.LabelHostname]}}},
				}}}},
			},
		})).To(Succeed())
	}
	c.install(ctx, nil)
	statement := `SELECT DISTINCT ON (name) format('- {namespace: %s, uid: %s}', name, uid) FROM namespaces ORDER BY name, since DESC`
	grants := strings.Split(strings.TrimSpace(c.kubectl(ctx, "--namespace", systemNamespace, "exec", "statefulset/clew-postgres", "--",
		"psql", "--host", "/run/clew", "--username", "clew", "clew", "-tAc", statement)), "\n")
	c.install(ctx, grants)
	c.startHost(ctx)
	p.host(ctx, `rm -rf "$R"; mkdir -p "$R"; echo `+c.repository+` | base64 -d | tar -C "$R" -xf -`)
	c.makeNamespace(ctx)
}

// count counts what happened, by the reasons of the timeline's entries, and the names of tasks.
func (c *lostCluster) count(ctx context.Context) map[string]int {
	GinkgoHelper()
	count, names := map[string]int{}, map[string]bool{}
	tasks := &clewv1.TaskList{}
	Expect(c.kube.List(ctx, tasks, client.InNamespace(c.namespace))).To(Succeed())
	for _, task := range tasks.Items {
		names[task.Name] = true
		for reason, n := range c.reasonsOf(ctx, task.Name) {
			count[reason] += n
		}
	}
	count["names"] = len(names)
	return count
}

// expectNothingOrphaned expects no pod, history or ref that is of no Task.
func (c *lostCluster) expectNothingOrphaned(ctx context.Context) {
	GinkgoHelper()
	tasks := &clewv1.TaskList{}
	Expect(c.kube.List(ctx, tasks, client.InNamespace(c.namespace))).To(Succeed())
	var uids []string
	for _, task := range tasks.Items {
		uids = append(uids, string(task.UID))
		Expect(task.Status.Adoption).To(HaveValue(HaveField("TaskUID", Not(BeEmpty()))), task.Name)
	}
	var rows []struct{ UID string }
	Expect(json.Unmarshal([]byte(c.inPostgres(ctx, "SELECT coalesce(json_agg(json_build_object('uid', uid)), '[]') FROM tasks")), &rows)).To(Succeed())
	for _, row := range rows {
		Expect(uids).To(ContainElement(row.UID), "the history of a task")
	}
	Expect(rows).To(HaveLen(len(uids)))
	Expect(c.inPostgres(ctx, "SELECT count(*) FROM checkpoint_names WHERE name IN ('mark') AND object_uid = ''")).To(Equal("0"))
	formers := strings.Fields(c.inPostgres(ctx, "SELECT former_uid FROM adoptions"))
	refs := c.inGitstore(ctx, "for d in /var/lib/clew-gitstore/namespaces/"+c.namespace+"/*.git; do git -c safe.directory='*' --git-dir $d for-each-ref --format='%(refname)' refs/clew; done")
	for ref := range strings.Lines(refs) {
		uid := strings.Split(strings.TrimSpace(ref), "/")[2]
		Expect(append(formers, uids...)).To(ContainElement(uid), fmt.Sprintf("the ref %s is of no task", ref))
	}
}
