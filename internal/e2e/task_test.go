//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
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

// replay is the command of an agent that really executes so many tool calls.
func replay(calls int, delay time.Duration) []string {
	return []string{"replay", fmt.Sprintf("--calls=%d", calls), "--delay=" + delay.String(), "--check"}
}

// create applies a new task, as a GitOps controller would, and waits for nothing.
func (w *world) create(task *clewv1.Task) {
	w.Helper()
	if err := w.apply(task, "--server-side", "--field-manager=gitops"); err != nil {
		w.Fatalf("apply task %s: %v", task.Name, err)
	}
}

func (w *world) task(name string) *clewv1.Task {
	w.Helper()
	task := &clewv1.Task{}
	if err := w.get(name, task); err != nil {
		w.Fatalf("get task %s: %v", name, err)
	}
	return task
}

// state is what people read: the reason of the condition Succeeded.
func state(task *clewv1.Task) string {
	if c := meta.FindStatusCondition(task.Status.Conditions, clewv1.TaskSucceeded); c != nil {
		return c.Reason
	}
	return ""
}

// untilState waits until the task's state is one of those given.
func (w *world) untilState(name string, timeout time.Duration, states ...string) *clewv1.Task {
	w.Helper()
	var task *clewv1.Task
	w.until(fmt.Sprintf("task %s is %s", name, strings.Join(states, " or ")), timeout, func() error {
		task = w.task(name)
		if got := state(task); !slices.Contains(states, got) {
			return fmt.Errorf("it is %q: %s", got, conditionMessage(task))
		}
		return nil
	})
	return task
}

func conditionMessage(task *clewv1.Task) string {
	if c := meta.FindStatusCondition(task.Status.Conditions, clewv1.TaskSucceeded); c != nil {
		return c.Message
	}
	return ""
}

// untilAgentRuns waits for the pod of the newest attempt and returns it.
func (w *world) untilAgentRuns(name string, timeout time.Duration) *corev1.Pod {
	w.Helper()
	var pod *corev1.Pod
	w.until("the agent of task "+name+" runs", timeout, func() error {
		task := w.task(name)
		if got := state(task); got != clewv1.ReasonRunning && got != clewv1.ReasonGitStoreRefused { // a full gitstore stops no agent
			return fmt.Errorf("task is %q: %s", state(task), conditionMessage(task))
		}
		pod = &corev1.Pod{}
		attempt := task.Status.Attempts[len(task.Status.Attempts)-1]
		if err := w.get(attempt.PodName, pod); err != nil {
			return err
		}
		for _, c := range pod.Status.ContainerStatuses {
			if c.Name == clewv1.AgentContainer && c.State.Running != nil && pod.DeletionTimestamp == nil {
				return nil
			}
		}
		return fmt.Errorf("pod %s is %s", pod.Name, pod.Status.Phase)
	})
	return pod
}

// untilToolCalls waits until history has so many answered tool calls on the active branch.
func (w *world) untilToolCalls(name string, n int64, timeout time.Duration) {
	w.Helper()
	w.until(fmt.Sprintf("task %s has %d tool calls", name, n), timeout, func() error {
		if got := int64(len(answeredCalls(w.conversation(name)))); got < n {
			return fmt.Errorf("it has %d", got)
		}
		return nil
	})
}

// checkpoints of a task by number.
func (w *world) checkpoints(task string) []clewv1.Checkpoint {
	w.Helper()
	list := &clewv1.CheckpointList{}
	if err := w.kube.List(w.ctx, list, client.InNamespace(w.namespace)); err != nil {
		w.Fatal(err)
	}
	var own []clewv1.Checkpoint
	for _, c := range list.Items {
		if c.Spec.TaskRef.Name == task && c.Status.Number > 0 {
			own = append(own, c)
		}
	}
	slices.SortFunc(own, func(a, b clewv1.Checkpoint) int { return int(a.Status.Number - b.Status.Number) })
	return own
}

// untilListed waits for the checkpoints of a stopped task, which follow the
// task's status an instant later.
func (w *world) untilListed(task string) []clewv1.Checkpoint {
	w.Helper()
	var ckpts []clewv1.Checkpoint
	w.until("each checkpoint of task "+task+" is listed", time.Minute, func() error {
		ckpts = w.checkpoints(task)
		if counted := w.task(task).Status.CheckpointCount; int64(len(ckpts)) != counted {
			return fmt.Errorf("%d of %d are", len(ckpts), counted)
		}
		return nil
	})
	return ckpts
}

// take applies a Checkpoint and waits until it is ready and durable.
func (w *world) take(task, name string) clewv1.Checkpoint {
	w.Helper()
	ckpt := &clewv1.Checkpoint{
		TypeMeta:   metav1.TypeMeta{APIVersion: clewv1.GroupVersion.String(), Kind: "Checkpoint"},
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec:       clewv1.CheckpointSpec{TaskRef: clewv1.NameReference{Name: task}, Message: "taken by a test"},
	}
	if err := w.apply(ckpt); err != nil {
		w.Fatalf("apply checkpoint: %v", err)
	}
	w.untilDurable(name)
	if err := w.get(name, ckpt); err != nil {
		w.Fatal(err)
	}
	return *ckpt
}

func (w *world) untilDurable(name string) {
	w.Helper()
	w.until("checkpoint "+name+" is durable", time.Minute, func() error {
		ckpt := &clewv1.Checkpoint{}
		if err := w.get(name, ckpt); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(ckpt.Status.Conditions, clewv1.CheckpointDurable) {
			return fmt.Errorf("conditions: %v", ckpt.Status.Conditions)
		}
		return nil
	})
}

// rewind asks for a rewind by server-side apply of the one field, and waits for its end.
func (w *world) rewind(task, id, checkpoint string, change ...func(*clewv1.Rewind)) *clewv1.Task {
	w.Helper()
	w.requestRewind(task, id, checkpoint, change...)
	return w.untilRewound(task, id, 3*time.Minute)
}

func (w *world) requestRewind(task, id, checkpoint string, change ...func(*clewv1.Rewind)) {
	w.Helper()
	rewind := clewv1.Rewind{ID: id, To: clewv1.RewindTarget{CheckpointRef: &clewv1.NameReference{Name: checkpoint}}}
	for _, c := range change {
		c(&rewind)
	}
	w.patchSpec(task, map[string]any{"rewind": rewind})
}

func (w *world) untilRewound(task, id string, timeout time.Duration) *clewv1.Task {
	w.Helper()
	var got *clewv1.Task
	w.until("rewind "+id+" is complete", timeout, func() error {
		got = w.task(task)
		r := got.Status.Rewind
		if r == nil || r.ID != id || r.State == clewv1.OperationInProgress {
			return fmt.Errorf("status.rewind is %+v; task is %s: %s", r, state(got), conditionMessage(got))
		}
		if r.State != clewv1.OperationCompleted {
			w.Fatalf("rewind %s ended %s: %s: %s", id, r.State, r.Reason, r.Message)
		}
		return nil
	})
	return got
}

// patchSpec sets fields of a task's spec by server-side apply.
func (w *world) patchSpec(task string, spec map[string]any) {
	w.Helper()
	manifest, err := json.Marshal(map[string]any{
		"apiVersion": clewv1.GroupVersion.String(), "kind": "Task",
		"metadata": map[string]any{"name": task, "namespace": w.namespace},
		"spec":     spec,
	})
	if err != nil {
		w.Fatal(err)
	}
	if out, err := w.kubectlIn(w.ctx, manifest, "apply", "--server-side", "--force-conflicts", "--field-manager=e2e", "-f", "-"); err != nil {
		w.Fatalf("apply %s: %v\n%s", manifest, err, out)
	}
}

// conversation reads the whole active branch through the history API.
func (w *world) conversation(task string) []historyv1.ConversationEntry {
	w.Helper()
	entries, err := w.tryConversation(task)
	if err != nil && !apierrors.IsNotFound(err) {
		w.Logf("conversation of %s: %v", task, err)
	}
	return entries
}

func (w *world) tryConversation(task string) ([]historyv1.ConversationEntry, error) {
	var entries []historyv1.ConversationEntry
	next := ""
	for {
		path := fmt.Sprintf("/apis/history.clew.dev/v1alpha1/namespaces/%s/tasks/%s/conversation?limit=500&continue=%s", w.namespace, task, url.QueryEscape(next))
		body, err := w.rawQuery(path)
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

func (w *world) rawQuery(path string) ([]byte, error) {
	return w.clientset.CoreV1().RESTClient().Get().RequestURI(path).DoRaw(w.ctx)
}

// timeline reads the newest events of a task, oldest first.
func (w *world) timeline(task string) []historyv1.TimelineEvent {
	w.Helper()
	body, err := w.rawQuery(fmt.Sprintf("/apis/history.clew.dev/v1alpha1/namespaces/%s/tasks/%s/timeline?limit=500", w.namespace, task))
	if err != nil {
		w.Fatalf("timeline of %s: %v", task, err)
	}
	var page historyv1.TimelineEventList
	if err := json.Unmarshal(body, &page); err != nil {
		w.Fatal(err)
	}
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
