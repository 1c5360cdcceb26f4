package cached

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// pod drops all of a pod but what says how far it is, and everything of one that no object of Clew's
// controls: anybody can write labels.
func pod(p *corev1.Pod) {
	trim(&p.ObjectMeta)
	if metav1.GetControllerOf(p) == nil {
		p.ObjectMeta = identity(p.ObjectMeta)
		p.Spec, p.Status = corev1.PodSpec{}, corev1.PodStatus{}
		return
	}
	s := p.Status
	p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName, SchedulingGates: p.Spec.SchedulingGates, Containers: named(p.Spec.Containers)}
	p.Status = corev1.PodStatus{
		Phase: s.Phase, Reason: s.Reason, Message: s.Message, Conditions: s.Conditions,
		InitContainerStatuses: states(s.InitContainerStatuses), ContainerStatuses: states(s.ContainerStatuses),
	}
}

// identity returns what distinguishes an object from others.
func identity(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
}

// named returns the container with the agent, by its name alone, if the pod has one.
func named(containers []corev1.Container) []corev1.Container {
	for _, c := range containers {
		if c.Name == v1alpha1.AgentContainer {
			return []corev1.Container{{Name: c.Name}}
		}
	}
	return nil
}

// states returns what containers do.
func states(all []corev1.ContainerStatus) (kept []corev1.ContainerStatus) {
	for _, s := range all {
		kept = append(kept, corev1.ContainerStatus{Name: s.Name, State: s.State, Image: s.Image})
	}
	return kept
}

// claim drops what no decision reads of a volume's claim.
func claim(c *corev1.PersistentVolumeClaim) {
	trim(&c.ObjectMeta)
	s := c.Spec
	c.Spec = corev1.PersistentVolumeClaimSpec{Resources: s.Resources, StorageClassName: s.StorageClassName, VolumeName: s.VolumeName}
}
