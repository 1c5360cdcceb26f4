//go:build e2e && soak

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

const hostileTask = "hostile"

// Not parallel: they measure how fast Clew is, and load the node.
//
// What an administrator does who shares a node is done: the CPU of the hostile
// containers is limited, and the number of their namespace's objects. See
// internal/testing/hostile for what they do.

// A hostile task floods everything that its agent can reach, and Clew's server and
// the gitstore with the task's own tokens and with made-up ones. It takes a quarter
// of an hour.
func TestAHostileTaskHurtsNobodyElse(t *testing.T) {
	g := gomega.NewWithT(t)
	alone, beside := besideHonestTasks(t, "accomplice", 10*time.Minute)
	for i, measured := range beside {
		g.Expect(measured.median).To(gomega.BeNumerically("<=", 2*alone[i].median), measured.what)
		g.Expect(measured.p95).To(gomega.BeNumerically("<=", 2*alone[i].p95), measured.what)
	}
}

// A hostile tenant does what whoever may edit a namespace can do besides: more
// hostile tasks, forks, and as much of the history as can be read. On a node of two
// processors that slows others down; it takes nothing else from them.
func TestAHostileTenantHurtsNobodyElse(t *testing.T) {
	besideHonestTasks(t, "tenant", 5*time.Minute)
}

// besideHonestTasks lets five honest tasks work alone and then, for a while, beside
// somebody hostile, and tells how long they waited. Nothing is restarted or killed
// meanwhile.
func besideHonestTasks(t *testing.T, somebody string, while time.Duration) (alone, beside []waits) {
	w, g := newWorld(t), gomega.NewWithT(t)
	var honest []string
	for i := range 5 {
		honest = append(honest, fmt.Sprintf("honest-%d", i+1))
		w.create(w.honestTask(honest[i]))
	}
	for _, name := range honest {
		w.untilAgentRuns(name, 5*time.Minute)
		w.untilToolCalls(name, 1, 5*time.Minute)
	}
	alone = w.observe(3*time.Minute, honest)

	tenant := newWorld(t)
	tenant.unleash(somebody)
	before := containersOfClew(w, tenant)
	memory := watchMemory(before)
	beside = w.observe(while, honest)

	t.Logf("what the hostile %s did:\n%s", somebody, tenant.kubectl("logs", "hostile", "--tail=25"))
	t.Logf("memory:\n%s", memory.table())
	t.Logf("how long honest tasks wait:\n%s", table(alone, beside))
	after := containersOfClew(w, tenant)
	for id, c := range before {
		g.Expect(after).To(gomega.HaveKey(id), "%s was restarted, or is gone", c.name)
	}
	g.Expect(memory.killed()).To(gomega.BeEmpty(), "killed for want of memory")
	for _, name := range honest {
		g.Expect(w.task(name).Status.Attempts).To(gomega.HaveLen(1))
	}
	return alone, beside
}

// honest is an agent that makes a call every six seconds or so, of which a checkpoint
// is taken, and then says when that was. The pauses differ, or five of them could keep
// step with each other, and wait for each other, for all of the test or not at all.
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

func (w *world) honestTask(name string) *clewv1.Task {
	task := w.newTask(name, "bash", "-c", honest)
	task.Spec.CheckpointPolicy.EveryToolCalls = ptr.To[int32](1)
	task.Spec.CheckpointPolicy.LeastIntervalSeconds = ptr.To[int32](5)
	task.Spec.Workspace.StorageClassName = ptr.To(w.ownVolume(name+"-workspace", task.Spec.Workspace.Size.String()))
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
// waits until both are at work.
func (w *world) unleash(somebody string) {
	w.Helper()
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
		if err := w.kube.Create(w.ctx, object); err != nil {
			w.Fatal(err)
		}
	}
	task := w.newTask(hostileTask, "hostile", "agent")
	task.Spec.CheckpointPolicy.EveryToolCalls = ptr.To[int32](1)
	task.Spec.CheckpointPolicy.LeastIntervalSeconds = ptr.To[int32](1)
	task.Spec.Workspace.Size = resource.MustParse("8Gi")
	task.Spec.Workspace.StorageClassName = ptr.To(w.ownVolume(hostileTask+"-workspace", "8Gi"))
	task.Spec.Template.Spec.Containers[0].Resources = cpu("10m", "200m")
	w.create(task)
	w.untilAgentRuns(hostileTask, 5*time.Minute)
	if err := w.kube.Create(w.ctx, w.hostilePod(somebody)); err != nil {
		w.Fatal(err)
	}
	w.until("the hostile "+somebody+" is at work", 2*time.Minute, func() error {
		out, err := w.kubectlIn(w.ctx, nil, "logs", "hostile", "--tail=1")
		if err == nil && out == "" {
			err = fmt.Errorf("it said nothing yet")
		}
		return err
	})
}

func (w *world) hostilePod(somebody string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "hostile"},
		Spec: corev1.PodSpec{
			ServiceAccountName: "tenant",
			RestartPolicy:      corev1.RestartPolicyAlways,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "hostile", Image: demoImage, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"hostile", somebody},
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
