package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/resources"
)

// podView is what decisions need to know about a pod.
type podView struct {
	pod *corev1.Pod
	// finished is true when no container of the pod runs or will run again.
	finished bool
	// deleting is true when the pod is being deleted.
	deleting bool
	// disrupted is the cluster's reason for evicting the pod; "" if it did not.
	disrupted string
	// prepareOnly is true for a pod without an agent.
	prepareOnly bool
	// prepare and agent are how these containers ended; nil while they have not.
	prepare *corev1.ContainerStateTerminated
	agent   *corev1.ContainerStateTerminated
	// agentRuns is true while the agent's container is running.
	agentRuns bool
	// problem is why the pod does not start; nil if nothing prevents it.
	problem *Blocker
}

// inspect returns the view of a pod.
func inspect(pod *corev1.Pod) *podView {
	v := &podView{
		pod:       pod,
		finished:  pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		deleting:  pod.DeletionTimestamp != nil,
		disrupted: disruption(pod),
		prepareOnly: !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
			return c.Name == v1alpha1.AgentContainer
		}),
	}
	if s := containerStatus(pod, daemonapi.PrepareContainer); s != nil {
		v.prepare = s.State.Terminated
	}
	if s := containerStatus(pod, v1alpha1.AgentContainer); s != nil {
		v.agent, v.agentRuns = s.State.Terminated, s.State.Running != nil
	}
	if !v.finished && !v.deleting {
		v.problem = startProblem(pod)
	}
	return v
}

// agentStart returns when the agent's container started; the zero time if it has not.
func (v *podView) agentStart() time.Time {
	s := containerStatus(v.pod, v1alpha1.AgentContainer)
	switch {
	case s == nil:
	case s.State.Running != nil:
		return s.State.Running.StartedAt.Time
	case s.State.Terminated != nil:
		return s.State.Terminated.StartedAt.Time
	}
	return time.Time{}
}

// ending reports whether the pod is about to end by itself, since what it was for has ended.
func (v *podView) ending() bool {
	return v.agent != nil || v.prepareOnly && v.prepare != nil
}

// containerStatus returns the status of a container or init container; nil if it has none.
func containerStatus(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			if statuses[i].Name == name {
				return &statuses[i]
			}
		}
	}
	return nil
}

// disruption returns the cluster's reason for evicting the pod; "" if it did not.
func disruption(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return c.Reason
		}
	}
	switch pod.Status.Reason {
	case "Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "UnexpectedAdmissionError", "NodeAffinity", "OutOfcpu", "OutOfmemory", "OutOfpods":
		return pod.Status.Reason
	}
	return ""
}

// interrupted reports whether a container was killed from outside before it could
// report anything.
func interrupted(t *corev1.ContainerStateTerminated, result daemonapi.PrepareResult) bool {
	return (t.ExitCode == 137 || t.ExitCode == 143) && t.Reason != "OOMKilled" && result.Reason == ""
}

// prepareResult returns what prepare reported; the zero value if that cannot be parsed.
func prepareResult(t *corev1.ContainerStateTerminated) daemonapi.PrepareResult {
	var result daemonapi.PrepareResult
	if t == nil {
		return result
	}
	if err := json.Unmarshal([]byte(t.Message), &result); err != nil {
		return daemonapi.PrepareResult{}
	}
	return result
}

// startProblem returns why a pod does not start; nil if nothing prevents it.
func startProblem(pod *corev1.Pod) *Blocker {
	if b := gateProblem(pod); b != nil {
		return b
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return schedulingProblem(c.Message, resources.AvoidedNode(pod))
		}
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if s.State.Waiting != nil {
			if b := waitingProblem(s.Name, s.Image, s.State.Waiting); b != nil {
				return b
			}
		}
	}
	return nil
}

// gateProblem returns that the pod waits for scheduling gates, which somebody else has set, such as a
// queue of the cluster; nil if it has none.
func gateProblem(pod *corev1.Pod) *Blocker {
	var gates []string
	for _, gate := range pod.Spec.SchedulingGates {
		gates = append(gates, gate.Name)
	}
	if len(gates) == 0 {
		return nil
	}
	return &Blocker{v1alpha1.ReasonQueued, fmt.Sprintf(
		"pod %s waits for %s to be lifted: whoever has set it on the pod, such as the cluster's own queue, lifts it when it is the pod's turn", pod.Name, gatesNamed(gates))}
}

// gatesNamed names scheduling gates.
func gatesNamed(gates []string) string {
	if len(gates) == 1 {
		return "its scheduling gate " + gates[0]
	}
	return "its scheduling gates " + listed(gates)
}

// schedulingProblem returns the blocker for the scheduler's message.
func schedulingProblem(message, avoidedNode string) *Blocker {
	reason := v1alpha1.ReasonUnschedulable
	for _, word := range []string{"persistentvolumeclaim", "PersistentVolumeClaim", "volume"} {
		if strings.Contains(message, word) {
			reason = v1alpha1.ReasonVolumeUnavailable
		}
	}
	message = "the pod cannot be scheduled: " + message
	if avoidedNode != "" {
		message += fmt.Sprintf("; its resume has the placement OtherNode and keeps it off node %s, the only one that can mount a local volume of the task: resume it with the placement Any, and its prompt again, to let it return", avoidedNode)
	}
	return &Blocker{Reason: reason, Message: message}
}

// waitingProblem returns the blocker for a container that waits; nil if it waits for
// nothing unusual.
func waitingProblem(container, image string, w *corev1.ContainerStateWaiting) *Blocker {
	switch w.Reason {
	case "InvalidImageName":
		return &Blocker{v1alpha1.ReasonImageUnavailable, fmt.Sprintf(
			"%q is not a valid image name, in the container %q: correct it (%s)", image, container, w.Message)}
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable":
		return &Blocker{v1alpha1.ReasonImageUnavailable, fmt.Sprintf(
			"the image %q of the container %q is not available: check its name and the imagePullSecrets (%s)", image, container, w.Message)}
	case "CreateContainerConfigError":
		return &Blocker{v1alpha1.ReasonPromptNotFound, fmt.Sprintf(
			"the container %q cannot be created: create the ConfigMap or Secret that promptFrom or its environment names (%s)", container, w.Message)}
	case "CreateContainerError", "RunContainerError":
		return &Blocker{v1alpha1.ReasonPodRefused, fmt.Sprintf("the container %q cannot be started: %s", container, w.Message)}
	case "CrashLoopBackOff":
		return &Blocker{v1alpha1.ReasonDaemonUnavailable, fmt.Sprintf("the container %q is crash-looping: %s", container, w.Message)}
	}
	return nil
}

// generation returns the generation of the Task that the pod was created from; 0 if
// unknown.
func (v *podView) generation() int64 {
	n, err := strconv.ParseInt(v.pod.Annotations[v1alpha1.AnnotationGeneration], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// outdated reports whether a pod would be another one if it were made now. What else has changed in the
// spec must not cost it its turn in a queue of the cluster.
func (d *decision) outdated(v *podView) bool {
	if v.generation() >= d.task.Generation {
		return false
	}
	made := v.pod.Annotations[v1alpha1.AnnotationPodDigest]
	return made == "" || made != d.o.PodDigest // without one, a former version made it
}

// end returns when the last of the pod's terminated containers ended; the zero time if
// none has.
func (v *podView) end() time.Time {
	var last time.Time
	for _, s := range slices.Concat(v.pod.Status.InitContainerStatuses, v.pod.Status.ContainerStatuses) {
		if t := s.State.Terminated; t != nil && t.FinishedAt.After(last) {
			last = t.FinishedAt.Time
		}
	}
	return last
}
