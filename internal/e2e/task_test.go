//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/matchers"
)

// newTask builds a task whose agent runs the command on the demo's repository.
func (w *world) newTask(name string, command ...string) *clewv1.Task {
	return &clewv1.Task{
		TypeMeta:   metav1.TypeMeta{APIVersion: clewv1.GroupVersion.String(), Kind: "Task"},
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: clewv1.TaskSpec{
			Repository: &clewv1.Repository{URL: originURL, Ref: "main"},
			Prompt:     ptr.To("Do what the script says."),
			Agent:      clewv1.Agent{Type: clewv1.AgentExec},
			Workspace:  clewv1.Workspace{Size: resource.MustParse("1Gi"), Retention: clewv1.WorkspaceDelete},
			CheckpointPolicy: clewv1.CheckpointPolicy{
				EveryToolCalls: ptr.To[int32](5), EverySeconds: ptr.To[int32](0), MaxFileBytes: ptr.To[int64](100 << 20),
			},
			BackoffLimit:  ptr.To[int32](50),
			OperatingMode: clewv1.OperatingModeRunning,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Name: clewv1.AgentContainer, Image: demoImage, ImagePullPolicy: corev1.PullIfNotPresent, Command: command,
			}}}},
		},
	}
}

// replay returns the command of an agent that really runs a number of tool calls.
func replay(calls int, delay time.Duration) []string {
	return []string{"replay", fmt.Sprintf("--calls=%d", calls), "--delay=" + delay.String(), "--check"}
}

// create applies a new task, as a GitOps controller would, and does not wait.
func (w *world) create(ctx context.Context, task *clewv1.Task) {
	GinkgoHelper()
	Expect(w.applyAs(ctx, "gitops", task)).To(Succeed(), "apply task %s", task.Name)
}

func (w *world) task(ctx context.Context, name string) *clewv1.Task {
	GinkgoHelper()
	task := &clewv1.Task{}
	Expect(w.get(ctx, name, task)).To(Succeed(), "get task %s", name)
	return task
}

// state returns the reason of the condition Succeeded, which users read first.
func state(task *clewv1.Task) string {
	if c := meta.FindStatusCondition(task.Status.Conditions, clewv1.TaskSucceeded); c != nil {
		return c.Reason
	}
	return ""
}

// untilState waits until the task is in one of the given states.
func (w *world) untilState(ctx context.Context, name string, timeout time.Duration, states ...string) *clewv1.Task {
	GinkgoHelper()
	var task *clewv1.Task
	w.eventually(ctx, func() error {
		task = w.task(ctx, name)
		if got := state(task); !slices.Contains(states, got) {
			return fmt.Errorf("the task is %q: %s", got, conditionMessage(task))
		}
		return nil
	}).WithTimeout(timeout).Should(Succeed(), "task %s is %s", name, strings.Join(states, " or "))
	return task
}

func conditionMessage(task *clewv1.Task) string {
	if c := meta.FindStatusCondition(task.Status.Conditions, clewv1.TaskSucceeded); c != nil {
		return c.Message
	}
	return ""
}

// untilAgentRuns waits for the pod of the newest attempt and returns it.
func (w *world) untilAgentRuns(ctx context.Context, name string, timeout time.Duration) *corev1.Pod {
	GinkgoHelper()
	var pod *corev1.Pod
	w.eventually(ctx, func() error {
		task := w.task(ctx, name)
		runs := []string{clewv1.ReasonRunning, clewv1.ReasonGitStoreRefused} // a full gitstore does not stop an agent
		if got := state(task); !slices.Contains(runs, got) {
			return fmt.Errorf("the task is %q: %s", got, conditionMessage(task))
		}
		pod = &corev1.Pod{}
		attempt := task.Status.Attempts[len(task.Status.Attempts)-1]
		if err := w.get(ctx, attempt.PodName, pod); err != nil {
			return err
		}
		if pod.DeletionTimestamp != nil {
			return fmt.Errorf("pod %s is terminating", pod.Name)
		}
		for _, c := range pod.Status.ContainerStatuses {
			if c.Name == clewv1.AgentContainer && c.State.Running != nil {
				return nil
			}
		}
		return fmt.Errorf("pod %s is %s", pod.Name, pod.Status.Phase)
	}).WithTimeout(timeout).Should(Succeed(), "the agent of task %s runs", name)
	return pod
}

// untilToolCalls waits until history has a number of answered tool calls on the active branch.
func (w *world) untilToolCalls(ctx context.Context, name string, n int64, timeout time.Duration) {
	GinkgoHelper()
	Eventually(ctx, func() error {
		if got := int64(len(answeredCalls(w.conversation(ctx, name)))); got < n {
			return fmt.Errorf("the task has %d tool calls", got)
		}
		return nil
	}).WithTimeout(timeout).WithPolling(between).Should(Succeed(), "task %s has %d tool calls", name, n)
}

// checkpoints returns the checkpoints of a task, by number.
func (w *world) checkpoints(ctx context.Context, task string) []clewv1.Checkpoint {
	GinkgoHelper()
	list := &clewv1.CheckpointList{}
	Expect(w.kube.List(ctx, list, client.InNamespace(w.namespace))).To(Succeed())
	var own []clewv1.Checkpoint
	for _, c := range list.Items {
		if c.Spec.TaskRef.Name == task && c.Status.Number > 0 {
			own = append(own, c)
		}
	}
	slices.SortFunc(own, func(a, b clewv1.Checkpoint) int { return int(a.Status.Number - b.Status.Number) })
	return own
}

// untilListed waits for the checkpoints of a stopped task, which appear an instant after
// the task's status counts them.
func (w *world) untilListed(ctx context.Context, task string) []clewv1.Checkpoint {
	GinkgoHelper()
	var ckpts []clewv1.Checkpoint
	w.eventually(ctx, func() error {
		ckpts = w.checkpoints(ctx, task)
		if counted := w.task(ctx, task).Status.CheckpointCount; int64(len(ckpts)) != counted {
			return fmt.Errorf("%d of %d checkpoints are listed", len(ckpts), counted)
		}
		return nil
	}).WithTimeout(time.Minute).Should(Succeed(), "each checkpoint of task %s is listed", task)
	return ckpts
}

// take applies a Checkpoint and waits until it is ready and durable.
func (w *world) take(ctx context.Context, task, name string) clewv1.Checkpoint {
	GinkgoHelper()
	w.requestCheckpoint(ctx, task, name)
	return *w.untilDurable(ctx, name)
}

// requestCheckpoint applies a Checkpoint and does not wait.
func (w *world) requestCheckpoint(ctx context.Context, task, name string) {
	GinkgoHelper()
	Expect(w.applyAs(ctx, "gitops", w.newCheckpoint(task, name))).To(Succeed(), "apply checkpoint %s", name)
}

func (w *world) newCheckpoint(task, name string) *clewv1.Checkpoint {
	return &clewv1.Checkpoint{
		TypeMeta:   metav1.TypeMeta{APIVersion: clewv1.GroupVersion.String(), Kind: "Checkpoint"},
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec:       clewv1.CheckpointSpec{TaskRef: clewv1.NameReference{Name: task}, Message: "taken by a test"},
	}
}

func (w *world) untilDurable(ctx context.Context, name string) *clewv1.Checkpoint {
	GinkgoHelper()
	ckpt := &clewv1.Checkpoint{}
	w.eventually(ctx, func() (*clewv1.Checkpoint, error) { return ckpt, w.get(ctx, name, ckpt) }).WithTimeout(2*time.Minute).
		Should(matchers.HaveCondition(clewv1.CheckpointDurable, metav1.ConditionTrue), "checkpoint %s is durable", name)
	return ckpt
}

// rewind requests a rewind by server-side apply of that field alone, and waits for its end.
func (w *world) rewind(ctx context.Context, task, id, checkpoint string, change ...func(*clewv1.Rewind)) *clewv1.Task {
	GinkgoHelper()
	w.requestRewind(ctx, task, id, checkpoint, change...)
	return w.untilRewound(ctx, task, id, 3*time.Minute)
}

func (w *world) requestRewind(ctx context.Context, task, id, checkpoint string, change ...func(*clewv1.Rewind)) {
	GinkgoHelper()
	rewind := clewv1.Rewind{ID: id, To: clewv1.RewindTarget{CheckpointRef: &clewv1.NameReference{Name: checkpoint}}}
	for _, c := range change {
		c(&rewind)
	}
	w.patchSpec(ctx, task, map[string]any{"rewind": rewind})
}

func (w *world) untilRewound(ctx context.Context, task, id string, timeout time.Duration) *clewv1.Task {
	GinkgoHelper()
	var got *clewv1.Task
	w.eventually(ctx, func() error {
		got = w.task(ctx, task)
		r := got.Status.Rewind
		if !ended(r, id) {
			return fmt.Errorf("status.rewind is %+v; task is %s: %s", r, state(got), conditionMessage(got))
		}
		if r.State != clewv1.OperationCompleted {
			return StopTrying(fmt.Sprintf("the rewind ended %s: %s: %s", r.State, r.Reason, r.Message))
		}
		return nil
	}).WithTimeout(timeout).Should(Succeed(), "rewind %s is complete", id)
	return got
}

// patchSpec sets fields of a task's spec by server-side apply.
func (w *world) patchSpec(ctx context.Context, task string, spec map[string]any) {
	GinkgoHelper()
	manifest, err := json.Marshal(map[string]any{
		"apiVersion": clewv1.GroupVersion.String(), "kind": "Task",
		"metadata": map[string]any{"name": task, "namespace": w.namespace},
		"spec":     spec,
	})
	Expect(err).NotTo(HaveOccurred())
	patched := &clewv1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: task}}
	Expect(w.applyManifest(ctx, "e2e", patched, manifest, client.ForceOwnership)).To(Succeed(), "apply %s", manifest)
}

// conversation reads the whole active branch through the history API.
func (w *world) conversation(ctx context.Context, task string) []historyv1.ConversationEntry {
	GinkgoHelper()
	entries, err := w.tryConversation(ctx, task)
	if err != nil && !apierrors.IsNotFound(err) {
		GinkgoWriter.Printf("conversation of %s: %v\n", task, err)
	}
	return entries
}

func (w *world) tryConversation(ctx context.Context, task string) ([]historyv1.ConversationEntry, error) {
	var entries []historyv1.ConversationEntry
	next := ""
	for {
		path := fmt.Sprintf("/apis/history.clew.dev/v1alpha1/namespaces/%s/tasks/%s/conversation?limit=500&continue=%s", w.namespace, task, url.QueryEscape(next))
		body, err := w.rawQuery(ctx, path)
		if err != nil {
			return nil, err
		}
		var page historyv1.ConversationList
		if err := json.Unmarshal(body, &page); err != nil {
			return nil, err
		}
		entries = append(entries, page.Items...)
		if next = page.Continue; next == "" {
			return entries, nil
		}
	}
}

func (w *world) rawQuery(ctx context.Context, path string) ([]byte, error) {
	return w.clientset.CoreV1().RESTClient().Get().RequestURI(path).DoRaw(ctx)
}

// timeline reads the newest events of a task, oldest first.
func (w *world) timeline(ctx context.Context, task string) []historyv1.TimelineEvent {
	GinkgoHelper()
	body, err := w.rawQuery(ctx, fmt.Sprintf("/apis/history.clew.dev/v1alpha1/namespaces/%s/tasks/%s/timeline?limit=500", w.namespace, task))
	Expect(err).NotTo(HaveOccurred(), "read the timeline of task %s", task)
	var page historyv1.TimelineEventList
	Expect(json.Unmarshal(body, &page)).To(Succeed())
	slices.Reverse(page.Items)
	return page.Items
}

// answeredCalls lists the ids of tool calls that have a real result, in order.
func answeredCalls(entries []historyv1.ConversationEntry) []string {
	var ids []string
	for _, e := range entries {
		if e.ToolResult != nil && !e.ToolResult.Interrupted {
			ids = append(ids, e.ToolResult.CallID)
		}
	}
	return ids
}
