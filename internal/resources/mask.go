package resources

import (
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/internal/daemonapi"
)

// maskVolumePrefix begins the names of the volumes that hold no more than the
// Secrets of a volume of the agent's.
const maskVolumePrefix = VolumePrefix + "mask-"

// masks is what prepare, daemon and shim are given so that they know the values
// which must not leave the pod: those of all Secrets that the agent is given.
type masks struct {
	env     []corev1.EnvVar
	envFrom []corev1.EnvFromSource
	mounts  []corev1.VolumeMount
	// volumes are those that the pod has for this purpose alone.
	volumes []corev1.Volume
}

// masksOf finds the Secrets that a container is given. optional lets a pod start
// that has no agent, although one of the Secrets is gone.
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

// secretsOf are the Secrets of a volume, whole where the volume has them whole.
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

func (m *masks) addVolume(of string, sources []corev1.VolumeProjection) {
	// A number, since a name of the user's may be as long as a name can be.
	name := fmt.Sprintf("%s%d", maskVolumePrefix, len(m.volumes))
	m.volumes = append(m.volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{Sources: sources},
	}})
	m.mounts = append(m.mounts, corev1.VolumeMount{Name: name, MountPath: path.Join(daemonapi.MaskPath, of), ReadOnly: true})
}

// give lets a container know the values.
func (m masks) give(c *corev1.Container) {
	c.Env = append(c.Env, m.env...)
	c.EnvFrom = append(c.EnvFrom, m.envFrom...)
	c.VolumeMounts = append(c.VolumeMounts, m.mounts...)
}
