package resources

import (
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/internal/daemonapi"
)

// maskVolumePrefix is the prefix of the names of volumes that contain only the Secrets of one
// of the agent's volumes.
const maskVolumePrefix = VolumePrefix + "mask-"

// masks gives prepare, daemon and shim the values that must not leave the pod: those of all
// Secrets that the agent gets.
type masks struct {
	env     []corev1.EnvVar
	envFrom []corev1.EnvFromSource
	mounts  []corev1.VolumeMount
	// volumes are the volumes that the pod has only for this purpose.
	volumes []corev1.Volume
}

// masksOf returns the masks for the Secrets that the agent's container gets. With optional a
// pod without an agent starts although one of the Secrets no longer exists.
func masksOf(agent corev1.Container, volumes []corev1.Volume, optional bool) masks {
	var m masks
	for _, e := range agent.Env {
		if e.ValueFrom == nil || e.ValueFrom.SecretKeyRef == nil {
			continue
		}
		ref := e.ValueFrom.SecretKeyRef.DeepCopy()
		ref.Optional = ptr.To(optional || ptr.Deref(ref.Optional, false))
		m.env = append(m.env, corev1.EnvVar{
			Name: fmt.Sprintf("%s%d", daemonapi.MaskPrefix, len(m.env)), ValueFrom: &corev1.EnvVarSource{SecretKeyRef: ref},
		})
	}
	for _, from := range agent.EnvFrom {
		if from.SecretRef == nil {
			continue
		}
		ref := from.SecretRef.DeepCopy()
		ref.Optional = ptr.To(optional || ptr.Deref(ref.Optional, false))
		m.envFrom = append(m.envFrom, corev1.EnvFromSource{
			Prefix: fmt.Sprintf("%sFROM_%d_", daemonapi.MaskPrefix, len(m.envFrom)), SecretRef: ref,
		})
	}
	for _, v := range volumes {
		mounted := slices.ContainsFunc(agent.VolumeMounts, func(mount corev1.VolumeMount) bool { return mount.Name == v.Name })
		if sources := secretsOf(v, optional); mounted && len(sources) > 0 {
			m.addVolume(v.Name, sources)
		}
	}
	return m
}

// secretsOf returns the Secrets of a volume, with the same keys that the volume has.
func secretsOf(v corev1.Volume, optional bool) []corev1.VolumeProjection {
	var sources []corev1.VolumeProjection
	switch {
	case v.Secret != nil:
		sources = []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: v.Secret.SecretName},
			Items:                slices.Clone(v.Secret.Items), Optional: v.Secret.Optional,
		}}}
	case v.Projected != nil:
		for _, source := range v.Projected.Sources {
			if source.Secret != nil {
				sources = append(sources, corev1.VolumeProjection{Secret: source.Secret.DeepCopy()})
			}
		}
	}
	for i := range sources {
		sources[i].Secret.Optional = ptr.To(optional || ptr.Deref(sources[i].Secret.Optional, false))
	}
	return sources
}

// addVolume adds a volume with the Secrets of another one.
func (m *masks) addVolume(of string, sources []corev1.VolumeProjection) {
	// A number, since the user's name for the volume may have the maximum length.
	name := fmt.Sprintf("%s%d", maskVolumePrefix, len(m.volumes))
	m.volumes = append(m.volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{Sources: sources},
	}})
	m.mounts = append(m.mounts, corev1.VolumeMount{Name: name, MountPath: path.Join(daemonapi.MaskPath, of), ReadOnly: true})
}

// addTo adds the masks to a container.
func (m masks) addTo(c *corev1.Container) {
	c.Env = append(c.Env, m.env...)
	c.EnvFrom = append(c.EnvFrom, m.envFrom...)
	c.VolumeMounts = append(c.VolumeMounts, m.mounts...)
}
