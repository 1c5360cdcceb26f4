package cached

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
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
	p.Spec = corev1.PodSpec{
		NodeName: p.Spec.NodeName, SchedulingGates: p.Spec.SchedulingGates, Containers: named(p.Spec.Containers), Volumes: workspace(p),
	}
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

// workspace returns the volume with the workspace, as resources.MountedClaim finds it, if the pod has one.
func workspace(p *corev1.Pod) []corev1.Volume {
	for _, v := range p.Spec.Volumes {
		of := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{v}}}
		if name := resources.MountedClaim(of); name != "" {
			return []corev1.Volume{{Name: v.Name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
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

// node drops all of a node but the labels by which volumes are bound to it, and whether it can be reached.
func node(n *corev1.Node) {
	n.ObjectMeta = metav1.ObjectMeta{
		Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels,
		CreationTimestamp: n.CreationTimestamp, DeletionTimestamp: n.DeletionTimestamp,
	}
	ready := corev1.NodeStatus{}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			ready.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	n.Spec, n.Status = corev1.NodeSpec{Taints: n.Spec.Taints}, ready
}
