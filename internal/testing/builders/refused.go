package builders

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// RefusedTemplate is a template that must be refused.
type RefusedTemplate struct {
	// Name is what is wrong.
	Name string
	// Break makes a good template a wrong one.
	Break TaskOption
	// Sentence is the beginning of the sentence that refuses it.
	Sentence string
}

// RefusedTemplates returns the templates that ValidateTemplate and the admission policy
// refuse, with the same sentences.
func RefusedTemplates() []RefusedTemplate {
	return []RefusedTemplate{
		{"no agent", agent(func(c *corev1.Container) { c.Name = "main" }), `template needs a container named "agent"`},
		{"no command", agent(func(c *corev1.Container) { c.Command = nil }), `the container "agent" needs a command, since the agent is of type Exec`},
		{"no image", agent(func(c *corev1.Container) { c.Image = "" }), `the container "agent" needs an image`},
		{"an image of spaces", agent(func(c *corev1.Container) { c.Image = "  " }), `the container "agent" needs an image`},
		{"a sidecar without an image", sidecar(func(c *corev1.Container) { c.Image = "" }), `every container of the template needs an image`},
		{"an init container without an image", pod(func(s *corev1.PodSpec) {
			s.InitContainers = append(s.InitContainers, corev1.Container{Name: "fetch"})
		}), `every container of the template needs an image`},
		{"HOME", agent(setEnv("HOME")), `environment variables of the container "agent" cannot be named HOME`},
		{"CLEW_TASK", agent(setEnv("CLEW_TASK")), `environment variables of the container "agent" cannot be named HOME or begin with CLEW_`},
		{"envFrom with a prefix of Clew's", agent(func(c *corev1.Container) {
			c.EnvFrom = []corev1.EnvFromSource{{Prefix: "CLEW_MASK_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}
		}), `a prefix of envFrom in the container "agent" cannot begin with CLEW_`},
		{"CLEW_MASK_0", agent(setEnv("CLEW_MASK_0")), `environment variables of the container "agent" cannot be named HOME or begin with CLEW_`},
		{"a user of its own", security(func(s *corev1.SecurityContext) { s.RunAsUser = ptr.To[int64](7) }), `the container "agent" cannot have a runAsUser`},
		{"container daemon", container("daemon"), `the container names "prepare" and "daemon" are Clew's own`},
		{"init container prepare", initContainer("prepare"), `the container names "prepare" and "daemon" are Clew's own`},
		{"volume clew-run", volume("clew-run", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), `volume names that begin with "clew-" are Clew's own`},
		{"mount of clew-workspace", agent(mount("clew-workspace", "/mnt")), `volume names that begin with "clew-" are Clew's own`},
		{"mount of clew-token in a sidecar", sidecar(mount("clew-token", "/mnt")), `volume names that begin with "clew-" are Clew's own`},
		{"mount with dots", agent(mount("x", "/mnt/../workspace")), `mountPath must be an absolute path`},
		{"mount at the worktree", agent(mount("x", "/workspace")), `nothing can be mounted at /workspace`},
		{"mount at the home", agent(mount("x", "/home/agent/")), `nothing can be mounted at /workspace, /home/agent`},
		{"mount below the shim", agent(mount("x", "/run/clew/bin")), `nothing can be mounted at /workspace, /home/agent, /run/clew`},
		{"mount at the masks", agent(mount("x", "/var/run/secrets/clew-mask/x")), `nothing can be mounted at /workspace, /home/agent, /run/clew, /var/run/secrets/clew-mask`},
		{"mount at the masks, by their other path", agent(mount("x", "/run/secrets/clew-mask")), `nothing can be mounted at /workspace`},
		{"mount over the masks", agent(mount("x", "/run/secrets/")), `nothing can be mounted at /workspace`},
		{"volume clew-mask-0", volume("clew-mask-0", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), `volume names that begin with "clew-" are Clew's own`},
		{"mount at the root", agent(mount("x", "/")), `nothing can be mounted at /workspace`},
		{"a label of Clew", func(t *v1alpha1.Task) {
			t.Spec.Template.Labels = map[string]string{v1alpha1.LabelAttempt: "7"}
		}, `labels of the template cannot begin with clew.dev/`},
		{"hostPath", volume("x", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}), `hostPath volumes are refused`},
		{"NFS", volume("x", corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "a", Path: "/"}}), `only volumes of the types configMap`},
		{"its own claim", func(t *v1alpha1.Task) {
			volume("x", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: t.Name + "-workspace"}})(t)
		}, `the task's own workspace claim cannot be mounted by hand`},
		{"another task's claim", volume("x", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "other-workspace"}}),
			`claims whose names end in -workspace are the volumes of tasks`},
		{"a token", volume("x", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "clew.dev", Path: "t"}},
		}}}), `projected service account tokens are refused`},
		{"hostNetwork", pod(func(s *corev1.PodSpec) { s.HostNetwork = true }), `hostNetwork, hostPID and hostIPC are refused`},
		{"hostPID", pod(func(s *corev1.PodSpec) { s.HostPID = true }), `hostNetwork, hostPID and hostIPC are refused`},
		{"hostIPC", pod(func(s *corev1.PodSpec) { s.HostIPC = true }), `hostNetwork, hostPID and hostIPC are refused`},
		{"shared processes", pod(func(s *corev1.PodSpec) { s.ShareProcessNamespace = ptr.To(true) }), `shareProcessNamespace is refused`},
		{"an account", pod(func(s *corev1.PodSpec) { s.ServiceAccountName = "admin" }), `task pods get no access to the Kubernetes API`},
		{"a mounted account", pod(func(s *corev1.PodSpec) { s.AutomountServiceAccountToken = ptr.To(true) }), `task pods get no access to the Kubernetes API`},
		{"restartPolicy", pod(func(s *corev1.PodSpec) { s.RestartPolicy = corev1.RestartPolicyAlways }), `restartPolicy must be Never`},
		{"activeDeadlineSeconds", pod(func(s *corev1.PodSpec) { s.ActiveDeadlineSeconds = ptr.To[int64](60) }), `activeDeadlineSeconds and ephemeralContainers`},
		{"sysctls", podSecurity(func(s *corev1.PodSecurityContext) { s.Sysctls = []corev1.Sysctl{{Name: "kernel.msgmax", Value: "1"}} }), `sysctls, SELinux users and roles`},
		{"privileged", security(func(s *corev1.SecurityContext) { s.Privileged = ptr.To(true) }), `privileged containers are refused`},
		{"privilege escalation", security(func(s *corev1.SecurityContext) { s.AllowPrivilegeEscalation = ptr.To(true) }), `privileged containers are refused`},
		{"capabilities", security(func(s *corev1.SecurityContext) {
			s.Capabilities = &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}}
		}), `added capabilities are refused`},
		{"root", podSecurity(func(s *corev1.PodSecurityContext) { s.RunAsUser = ptr.To[int64](0) }), `task pods cannot run as root`},
		{"maybe root", security(func(s *corev1.SecurityContext) { s.RunAsNonRoot = ptr.To(false) }), `task pods cannot run as root`},
		{"seccomp", podSecurity(func(s *corev1.PodSecurityContext) {
			s.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
		}), `seccomp and AppArmor profiles cannot be Unconfined`},
		{"an SELinux type", podSecurity(func(s *corev1.PodSecurityContext) { s.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"} }), `the SELinux type can only be`},
		{"an SELinux type of a container", security(func(s *corev1.SecurityContext) { s.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"} }), `the SELinux type can only be`},
		{"an AppArmor annotation", func(t *v1alpha1.Task) {
			t.Spec.Template.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/agent": "unconfined"}
		}, `AppArmor annotations can only be`},
		{"a probe of another host", agent(func(c *corev1.Container) {
			c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: "169.254.169.254", Port: intstr.FromInt32(80)}}}
		}), `probes and lifecycle hooks cannot name a host`},
		{"a hook that calls another host", sidecar(func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{TCPSocket: &corev1.TCPSocketAction{Host: "10.0.0.1", Port: intstr.FromInt32(10250)}}}
		}), `probes and lifecycle hooks cannot name a host`},
		{"hostPort", agent(func(c *corev1.Container) {
			c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: corev1.ProtocolTCP}}
		}), `hostPort is refused`},
	}
}

func pod(change func(*corev1.PodSpec)) TaskOption {
	return func(t *v1alpha1.Task) { change(&t.Spec.Template.Spec) }
}

func agent(change func(*corev1.Container)) TaskOption {
	return pod(func(s *corev1.PodSpec) { change(&s.Containers[0]) })
}

func security(change func(*corev1.SecurityContext)) TaskOption {
	return agent(func(c *corev1.Container) {
		c.SecurityContext = &corev1.SecurityContext{}
		change(c.SecurityContext)
	})
}

func podSecurity(change func(*corev1.PodSecurityContext)) TaskOption {
	return pod(func(s *corev1.PodSpec) {
		s.SecurityContext = &corev1.PodSecurityContext{}
		change(s.SecurityContext)
	})
}

func sidecar(change func(*corev1.Container)) TaskOption {
	return pod(func(s *corev1.PodSpec) {
		c := corev1.Container{Name: "beside", Image: "i"}
		change(&c)
		s.Containers = append(s.Containers, c)
	})
}

func container(name string) TaskOption {
	return sidecar(func(c *corev1.Container) { c.Name = name })
}

func initContainer(name string) TaskOption {
	return pod(func(s *corev1.PodSpec) {
		s.InitContainers = append(s.InitContainers, corev1.Container{Name: name, Image: "i"})
	})
}

func volume(name string, source corev1.VolumeSource) TaskOption {
	return pod(func(s *corev1.PodSpec) {
		s.Volumes = append(s.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	})
}

func mount(name, path string) func(*corev1.Container) {
	return func(c *corev1.Container) {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path})
	}
}

func setEnv(name string) func(*corev1.Container) {
	return func(c *corev1.Container) { c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: "x"}) }
}
