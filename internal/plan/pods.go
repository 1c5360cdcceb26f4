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
)

// podView is what decisions need to know of a pod.
type podView struct {
	pod *corev1.Pod
	// finished: no container of it runs or will run again.
	finished bool
	// deleting: somebody deleted it.
	deleting bool
	// disrupted: the cluster evicted it.
	disrupted string
	// prepareOnly: it has no agent.
	prepareOnly bool
	prepare     *corev1.ContainerStateTerminated
	agent       *corev1.ContainerStateTerminated
	// agentRuns: the agent's container is running.
	agentRuns bool
	problem   *Blocker
}

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
		v.problem = trouble(pod)
	}
	return v
}

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

// disruption says how the cluster evicted the pod; "" if it did not.
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

// prepareResult is what prepare reported; the zero value if that cannot be read.
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

// trouble is why a pod does not start.
func trouble(pod *corev1.Pod) *Blocker {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return schedulingTrouble(c.Message)
		}
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if s.State.Waiting != nil {
			if h := waitingTrouble(s.Name, s.Image, s.State.Waiting); h != nil {
				return h
			}
		}
	}
	return nil
}

func schedulingTrouble(message string) *Blocker {
	reason := v1alpha1.ReasonUnschedulable
	for _, word := range []string{"persistentvolumeclaim", "PersistentVolumeClaim", "volume"} {
		if strings.Contains(message, word) {
			reason = v1alpha1.ReasonVolumeUnavailable
		}
	}
	return &Blocker{Reason: reason, Message: "the pod cannot be scheduled: " + message}
}

func waitingTrouble(container, image string, w *corev1.ContainerStateWaiting) *Blocker {
	switch w.Reason {
	case "InvalidImageName":
		return &Blocker{v1alpha1.ReasonImageUnavailable, fmt.Sprintf(
			"%q, of the container %q, cannot be the name of an image: put it right (%s)", image, container, w.Message)}
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable":
		return &Blocker{v1alpha1.ReasonImageUnavailable, fmt.Sprintf(
			"the image %q of the container %q is not available: check its name and the imagePullSecrets (%s)", image, container, w.Message)}
	case "CreateContainerConfigError":
		return &Blocker{v1alpha1.ReasonPromptNotFound, fmt.Sprintf(
			"the container %q cannot be made: create the ConfigMap or Secret that promptFrom or its environment names (%s)", container, w.Message)}
	case "CreateContainerError", "RunContainerError":
		return &Blocker{v1alpha1.ReasonPodRefused, fmt.Sprintf("the container %q cannot be started: %s", container, w.Message)}
	case "CrashLoopBackOff":
		return &Blocker{v1alpha1.ReasonDaemonUnavailable, fmt.Sprintf("the container %q is crash-looping: %s", container, w.Message)}
	}
	return nil
}

// generation is that of the Task the pod was made from; 0 if unknown.
func (v *podView) generation() int64 {
	n, err := strconv.ParseInt(v.pod.Annotations[v1alpha1.AnnotationGeneration], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// end is when the pod's last container ended; the zero time while one runs.
func (v *podView) end() time.Time {
	var last time.Time
	for _, s := range slices.Concat(v.pod.Status.InitContainerStatuses, v.pod.Status.ContainerStatuses) {
		if t := s.State.Terminated; t != nil && t.FinishedAt.After(last) {
			last = t.FinishedAt.Time
		}
	}
	return last
}
