//go:build e2e && soak

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// hostileTask is the name of the hostile task.
const hostileTask = "hostile"

// An administrator of a shared node limits the CPU of the hostile containers and the
// number of objects in their namespace, and so do these specs. See
// internal/testing/hostile for what the containers do.
//
// Serial: they measure how fast Clew is, and load the node.
var _ = Describe("five honest tasks", Serial, Label("slow", "soak"), func() {
	w, tenant := newWorld(), newWorld()

	// A hostile task floods everything that its agent can reach, and Clew's server and
	// the gitstore with the task's own tokens and with made-up ones. It takes a quarter
	// of an hour.
	It("wait at most twice as long beside a hostile task", func(ctx SpecContext) {
		alone, beside := w.besideHostile(ctx, tenant, "accomplice", 10*time.Minute)
		for i, measured := range beside {
			Expect(measured.median).To(BeNumerically("<=", 2*alone[i].median), measured.what)
			Expect(measured.p95).To(BeNumerically("<=", 2*alone[i].p95), measured.what)
		}
	})

	// A hostile tenant also does everything that the right to edit a namespace allows: more
	// hostile tasks, forks, and as many reads of the history as it can make. On a node with
	// two processors this slows others down; it must do nothing else to them.
	It("lose nothing beside a hostile tenant", func(ctx SpecContext) {
		w.besideHostile(ctx, tenant, "tenant", 5*time.Minute)
	})
})

// besideHostile lets five honest tasks work alone and then, for a while, beside something
// hostile in the tenant's namespace, and returns how long they waited. It expects that
// nothing is restarted or killed meanwhile.
func (w *world) besideHostile(ctx context.Context, tenant *world, hostile string, while time.Duration) (alone, beside []waits) {
	GinkgoHelper()
	var honest []string
	for i := range 5 {
		honest = append(honest, fmt.Sprintf("honest-%d", i+1))
		w.create(ctx, w.honestTask(ctx, honest[i]))
	}
	for _, name := range honest {
		w.untilAgentRuns(ctx, name, 5*time.Minute)
		w.untilToolCalls(ctx, name, 1, 5*time.Minute)
	}
	alone = w.observe(ctx, 3*time.Minute, honest)

	tenant.unleash(ctx, hostile)
	before := containersOfClew(ctx, w, tenant)
	memory := watchMemory(before)
	beside = w.observe(ctx, while, honest)

	AddReportEntry("what the hostile "+hostile+" did", tenant.kubectl(ctx, "logs", "hostile", "--tail=25"))
	AddReportEntry("memory", memory.table())
	AddReportEntry("how long honest tasks wait", table(alone, beside))
	after := containersOfClew(ctx, w, tenant)
	for id, c := range before {
		Expect(after).To(HaveKey(id), "%s was restarted, or is gone", c.name)
	}
	Expect(memory.killed()).To(BeEmpty(), "killed for lack of memory")
	for _, name := range honest {
		Expect(w.task(ctx, name).Status.Attempts).To(HaveLen(1))
	}
	return alone, beside
}

// honest is an agent that makes a tool call about every six seconds, after which a
// checkpoint is taken, and then says when the call was done. The pauses vary: otherwise
// five of them could run in step, and wait for each other always or never.
const honest = `
i=0
while sleep "$((4 + RANDOM % 4)).$((RANDOM % 10))"; do
  i=$((i+1))
  printf '{"type":"tool_call","id":"call-%d","name":"write_file","input":{"path":"part-%d"}}\n' $i $i
  mkdir -p parts; head -c 20000 /dev/urandom | base64 > parts/$((i % 50)); echo "$i" >> log.md
  now=$(date +%s%N)
  printf '{"type":"tool_result","id":"call-%d","output":"wrote it"}\n' $i
  printf '{"type":"message","role":"assistant","text":"call %d was done at %s"}\n' $i $now
done
`

func (w *world) honestTask(ctx context.Context, name string) *clewv1.Task {
	task := w.newTask(name, "bash", "-c", honest)
	task.Spec.CheckpointPolicy.EveryToolCalls = ptr.To[int32](1)
	task.Spec.CheckpointPolicy.LeastIntervalSeconds = ptr.To[int32](5)
	task.Spec.Workspace.StorageClassName = ptr.To(w.ownVolume(ctx, name+"-workspace", task.Spec.Workspace.Size.String()))
	task.Spec.Template.Spec.Containers[0].Resources = cpu("100m", "1")
	return task
}

func cpu(request, limit string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(request)},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(limit), corev1.ResourceMemory: resource.MustParse("512Mi")},
	}
}

// unleash starts a hostile task, and a hostile pod beside it, in this namespace, and
// waits until both run.
func (w *world) unleash(ctx context.Context, hostile string) {
	GinkgoHelper()
	account := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: w.namespace, Name: "tenant"}
	meta := metav1.ObjectMeta{Namespace: w.namespace, Name: account.Name}
	for _, object := range []client.Object{
		&corev1.ResourceQuota{ObjectMeta: meta, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			corev1.ResourcePods: resource.MustParse("4"), corev1.ResourcePersistentVolumeClaims: resource.MustParse("4"),
			"count/tasks.clew.dev": resource.MustParse("10"), "count/forks.clew.dev": resource.MustParse("10"),
		}}},
		&corev1.ServiceAccount{ObjectMeta: meta},
		&rbacv1.RoleBinding{ObjectMeta: meta, Subjects: []rbacv1.Subject{account},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"}},
	} {
		Expect(w.kube.Create(ctx, object)).To(Succeed())
	}
	task := w.newTask(hostileTask, "hostile", "agent")
	task.Spec.CheckpointPolicy.EveryToolCalls = ptr.To[int32](1)
	task.Spec.CheckpointPolicy.LeastIntervalSeconds = ptr.To[int32](1)
	task.Spec.Workspace.Size = resource.MustParse("8Gi")
	task.Spec.Workspace.StorageClassName = ptr.To(w.ownVolume(ctx, hostileTask+"-workspace", "8Gi"))
	task.Spec.Template.Spec.Containers[0].Resources = cpu("10m", "200m")
	w.create(ctx, task)
	w.untilAgentRuns(ctx, hostileTask, 5*time.Minute)
	Expect(w.kube.Create(ctx, w.hostilePod(hostile))).To(Succeed())
	Eventually(ctx, func() (string, error) {
		return w.kubectlIn(ctx, nil, "logs", "hostile", "--tail=1")
	}).WithTimeout(2*time.Minute).ShouldNot(BeEmpty(), "the hostile %s has started its work", hostile)
}

func (w *world) hostilePod(hostile string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "hostile"},
		Spec: corev1.PodSpec{
			ServiceAccountName: "tenant",
			RestartPolicy:      corev1.RestartPolicyAlways,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "hostile", Image: demoImage, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"hostile", hostile},
				Env: []corev1.EnvVar{
					{Name: "HOSTILE_TASK", Value: hostileTask}, {Name: "HOSTILE_ORIGIN", Value: originURL}, {Name: "HOSTILE_IMAGE", Value: demoImage},
				},
				Resources: cpu("10m", "200m"),
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}
