package builders

import (
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// Kubelet does the work of the scheduler and the kubelet for an API server that has
// neither.
type Kubelet struct {
	// Client writes the status of pods.
	Client client.Client
	// Kubernetes binds pods.
	Kubernetes kubernetes.Interface
}

// Node is the name of the node to which pods are assigned.
const Node = "node"

// Bind assigns the pod to a node that can be reached, so that its deletion is graceful.
func (k Kubelet) Bind(ctx context.Context, pod *corev1.Pod) error { return k.BindTo(ctx, pod, Node) }

// BindTo is Bind to a certain node, which is made if it does not exist.
func (k Kubelet) BindTo(ctx context.Context, pod *corev1.Pod, node string) error {
	if err := k.EnsureNode(ctx, node); err != nil {
		return err
	}
	return k.Kubernetes.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
}

// EnsureNode makes a node that can be reached, unless it exists.
func (k Kubelet) EnsureNode(ctx context.Context, name string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	if _, err := k.Kubernetes.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// Prepared reports that the container prepare has exited with this code and result.
func (k Kubelet) Prepared(ctx context.Context, pod *corev1.Pod, code int32, result daemonapi.PrepareResult) error {
	message, err := json.Marshal(result)
	if err != nil {
		return err
	}
	status := corev1.ContainerStatus{Name: daemonapi.PrepareContainer, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: code, Message: string(message), FinishedAt: metav1.Now(),
	}}}
	return k.report(ctx, pod, func(s *corev1.PodStatus) {
		main := len(pod.Spec.InitContainers) == 0
		if main {
			s.ContainerStatuses = []corev1.ContainerStatus{status}
		} else {
			s.InitContainerStatuses = []corev1.ContainerStatus{status}
		}
		switch {
		case code != 0:
			s.Phase = corev1.PodFailed
		case main:
			s.Phase = corev1.PodSucceeded
		}
	})
}

// AgentRuns reports that the agent's container runs.
func (k Kubelet) AgentRuns(ctx context.Context, pod *corev1.Pod) error {
	return k.report(ctx, pod, func(s *corev1.PodStatus) {
		s.Phase = corev1.PodRunning
		s.ContainerStatuses = []corev1.ContainerStatus{{Name: v1alpha1.AgentContainer, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}}
	})
}

// AgentExits reports that the agent has exited, and the pod has ended with it.
func (k Kubelet) AgentExits(ctx context.Context, pod *corev1.Pod, code int32) error {
	return k.report(ctx, pod, func(s *corev1.PodStatus) {
		s.Phase = corev1.PodSucceeded
		if code != 0 {
			s.Phase = corev1.PodFailed
		}
		ended := &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.Now()}
		for _, was := range s.ContainerStatuses {
			if was.State.Running != nil {
				ended.StartedAt = was.State.Running.StartedAt
			}
		}
		s.ContainerStatuses = []corev1.ContainerStatus{{Name: v1alpha1.AgentContainer, State: corev1.ContainerState{Terminated: ended}}}
	})
}

// Vanish removes the pod at once.
func (k Kubelet) Vanish(ctx context.Context, pod *corev1.Pod) error {
	return client.IgnoreNotFound(k.Client.Delete(ctx, pod, client.GracePeriodSeconds(0)))
}

// report changes the status of the current version of the pod.
func (k Kubelet) report(ctx context.Context, pod *corev1.Pod, change func(*corev1.PodStatus)) error {
	current := &corev1.Pod{}
	if err := k.Client.Get(ctx, client.ObjectKeyFromObject(pod), current); err != nil {
		return err
	}
	change(&current.Status)
	return k.Client.Status().Update(ctx, current)
}
