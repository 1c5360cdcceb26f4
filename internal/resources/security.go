package resources

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// defaultUser is the user that all containers of a task run as, so that agent and daemon can
// read each other's files.
const defaultUser = 1000

// restrictPod sets the fields that the restricted Pod Security Standard requires and the user
// left out.
func (b *podBuilder) restrictPod() {
	if b.spec.SecurityContext == nil {
		b.spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	s := b.spec.SecurityContext
	s.RunAsNonRoot = ptr.To(true)
	if s.RunAsUser == nil {
		s.RunAsUser = ptr.To[int64](defaultUser)
	}
	if s.RunAsGroup == nil {
		s.RunAsGroup = ptr.To(*s.RunAsUser)
	}
	if s.FSGroup == nil {
		s.FSGroup = ptr.To(*s.RunAsGroup)
	}
	if s.FSGroupChangePolicy == nil {
		s.FSGroupChangePolicy = ptr.To(corev1.FSGroupChangeOnRootMismatch)
	}
	if s.SeccompProfile == nil {
		s.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	}
}

// restrictContainers does that for every container.
func (b *podBuilder) restrictContainers() {
	for _, containers := range [][]corev1.Container{b.spec.InitContainers, b.spec.Containers} {
		for i := range containers {
			restrict(&containers[i])
		}
	}
}

// restrict sets the fields of a container that the standard requires.
func restrict(c *corev1.Container) {
	if c.SecurityContext == nil {
		c.SecurityContext = &corev1.SecurityContext{}
	}
	c.SecurityContext.AllowPrivilegeEscalation = ptr.To(false)
	if c.SecurityContext.Capabilities == nil {
		c.SecurityContext.Capabilities = &corev1.Capabilities{}
	}
	c.SecurityContext.Capabilities.Drop = []corev1.Capability{"ALL"}
}

// ownSecurity returns the security context of prepare and daemon.
func ownSecurity() *corev1.SecurityContext {
	return &corev1.SecurityContext{ReadOnlyRootFilesystem: ptr.To(true)}
}
