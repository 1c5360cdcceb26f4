package resources

import (
	"errors"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// templateRule is something that a template must not contain. config/admission/task-policy.yaml
// has the same sentences word for word; a test compares them.
type templateRule struct {
	// sentence says what is wrong and what to do.
	sentence string
	// broken reports whether the template violates the rule.
	broken func(t template) bool
}

// template is what the rules examine.
type template struct {
	task       string
	exec       bool // the agent is of type Exec
	meta       map[string]string
	notes      map[string]string // annotations
	spec       *corev1.PodSpec
	containers []corev1.Container // init containers included
	agent      *corev1.Container
}

// ValidateTemplate returns why a task's template cannot be used, as one sentence; nil if it
// can. The admission policy refuses the same at kubectl apply; this is for clusters where it is
// not installed, and for tasks older than it.
func ValidateTemplate(task *v1alpha1.Task) error {
	spec := &task.Spec.Template.Spec
	t := template{
		task:       task.Name,
		exec:       task.Spec.Agent.Type == v1alpha1.AgentExec || task.Spec.Agent.Type == "",
		meta:       task.Spec.Template.Labels,
		notes:      task.Spec.Template.Annotations,
		spec:       spec,
		containers: slices.Concat(spec.InitContainers, spec.Containers),
	}
	for i := range spec.Containers {
		if spec.Containers[i].Name == v1alpha1.AgentContainer {
			t.agent = &spec.Containers[i]
		}
	}
	for _, rule := range templateRules() {
		if rule.broken(t) {
			return errors.New(rule.sentence)
		}
	}
	return restricted(task)
}

// templateRules returns all rules, in the order in which they are checked.
func templateRules() []templateRule {
	return slices.Concat(agentRules(), namingRules(), volumeRules(), podRules(), containerRules(), hostRules())
}

// agentRules returns the rules about the container of the agent.
func agentRules() []templateRule {
	return []templateRule{
		{`template needs a container named "agent": it is the one that runs the agent`,
			func(t template) bool { return t.agent == nil }},
		{`the container "agent" needs a command, since the agent is of type Exec: Clew starts it through a shim and cannot see the entrypoint of the image`,
			func(t template) bool { return t.exec && t.agent != nil && len(t.agent.Command) == 0 }},
		{`the container "agent" needs an image: set image to one that holds the agent's program, such as registry.example.com/my-agent:1.2`,
			func(t template) bool { return t.agent != nil && noImage(*t.agent) }},
		{`every container of the template needs an image: set image for each of containers and initContainers`, anyContainer(noImage)},
		{`environment variables of the container "agent" cannot be named HOME or begin with CLEW_: Clew sets those`,
			func(t template) bool {
				return t.agent != nil && slices.ContainsFunc(t.agent.Env, func(e corev1.EnvVar) bool {
					return e.Name == "HOME" || strings.HasPrefix(e.Name, "CLEW_")
				})
			}},
		{`a prefix of envFrom in the container "agent" cannot begin with CLEW_: Clew sets such variables`,
			func(t template) bool {
				return t.agent != nil && slices.ContainsFunc(t.agent.EnvFrom, func(e corev1.EnvFromSource) bool {
					return strings.HasPrefix(e.Prefix, "CLEW_")
				})
			}},
		{`the container "agent" cannot have a runAsUser or runAsGroup of its own: set them in template.spec.securityContext, since agent and daemon share files`,
			func(t template) bool {
				return t.agent != nil && t.agent.SecurityContext != nil &&
					(t.agent.SecurityContext.RunAsUser != nil || t.agent.SecurityContext.RunAsGroup != nil)
			}},
	}
}

// noImage reports whether the container has no image.
func noImage(c corev1.Container) bool { return strings.TrimSpace(c.Image) == "" }

// namingRules returns the rules about names, paths and labels that are Clew's own.
func namingRules() []templateRule {
	return []templateRule{
		{`the container names "prepare" and "daemon" are Clew's own: choose other names`,
			anyContainer(func(c corev1.Container) bool {
				return c.Name == daemonapi.PrepareContainer || c.Name == daemonapi.DaemonContainer
			})},
		{`volume names that begin with "clew-" are Clew's own: choose other names, and mount none of Clew's volumes`,
			func(t template) bool {
				return slices.ContainsFunc(t.spec.Volumes, func(v corev1.Volume) bool { return strings.HasPrefix(v.Name, VolumePrefix) }) ||
					anyContainer(mountsClewVolume)(t)
			}},
		{`mountPath must be an absolute path without "." and ".." in it`,
			anyMount(func(p string) bool {
				return !strings.HasPrefix(p, "/") || (p != "/" && path.Clean(p) != strings.TrimSuffix(p, "/"))
			})},
		{`nothing can be mounted at /workspace, /home/agent, /run/clew, /var/run/secrets/clew-mask or a folder that holds them: choose another mountPath`,
			anyMount(reservedPath)},
		{`labels of the template cannot begin with clew.dev/: Clew sets those`,
			func(t template) bool {
				for key := range t.meta {
					if strings.HasPrefix(key, "clew.dev/") {
						return true
					}
				}
				return false
			}},
	}
}

// mountsClewVolume reports whether the container mounts one of Clew's volumes.
func mountsClewVolume(c corev1.Container) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return strings.HasPrefix(m.Name, VolumePrefix) }) ||
		slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return strings.HasPrefix(d.Name, VolumePrefix) })
}

// reservedPath reports whether a mount at the path would hide one of Clew's.
func reservedPath(p string) bool {
	p = strings.TrimSuffix(p, "/")
	// In most images /var/run is a link to /run.
	held := []string{"", "/home", daemonapi.HomePath, daemonapi.WorktreePath, "/run", daemonapi.RunPath, "/var", "/var/run", "/run/secrets", "/var/run/secrets"}
	return slices.Contains(held, p) || strings.HasPrefix(p, daemonapi.RunPath+"/") ||
		strings.HasPrefix(p+"/", daemonapi.MaskPath+"/") || strings.HasPrefix(p+"/", strings.TrimPrefix(daemonapi.MaskPath, "/var")+"/")
}

// volumeRules returns the rules about volumes.
func volumeRules() []templateRule {
	return []templateRule{
		{`hostPath volumes are refused, since task pods run under the restricted Pod Security Standard: use a PersistentVolumeClaim, a ConfigMap or an emptyDir`,
			anyVolume(func(_ template, v corev1.Volume) bool { return v.HostPath != nil })},
		{`only volumes of the types configMap, csi, downwardAPI, emptyDir, ephemeral, persistentVolumeClaim, projected and secret are allowed, since task pods run under the restricted Pod Security Standard`,
			anyVolume(func(_ template, v corev1.Volume) bool {
				s := v.VolumeSource
				return s.HostPath == nil && s.ConfigMap == nil && s.CSI == nil && s.DownwardAPI == nil && s.EmptyDir == nil &&
					s.Ephemeral == nil && s.PersistentVolumeClaim == nil && s.Projected == nil && s.Secret == nil
			})},
		{`the task's own workspace claim cannot be mounted by hand: the container "agent" has it at /workspace already`,
			anyVolume(func(t template, v corev1.Volume) bool {
				return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == ClaimName(t.task)
			})},
		{`claims whose names end in -workspace are the volumes of tasks, with Clew's own records on them, and cannot be mounted: start from a task's work with startFrom, or give a claim of your own another name`,
			anyVolume(func(_ template, v corev1.Volume) bool {
				return v.PersistentVolumeClaim != nil && strings.HasSuffix(v.PersistentVolumeClaim.ClaimName, claimSuffix)
			})},
		{`projected service account tokens are refused: task pods get no credentials of the cluster`,
			anyVolume(func(_ template, v corev1.Volume) bool {
				return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
					return s.ServiceAccountToken != nil || s.PodCertificate != nil
				})
			})},
	}
}

// podRules returns the rules about the pod as a whole.
func podRules() []templateRule {
	return []templateRule{
		{`hostNetwork, hostPID and hostIPC are refused, since task pods run under the restricted Pod Security Standard: leave them out`,
			func(t template) bool { return t.spec.HostNetwork || t.spec.HostPID || t.spec.HostIPC }},
		{`shareProcessNamespace is refused, since the agent could reach into the daemon's container: leave it out`,
			func(t template) bool { return ptr.Deref(t.spec.ShareProcessNamespace, false) }},
		{`task pods get no access to the Kubernetes API: leave serviceAccountName and automountServiceAccountToken out`,
			func(t template) bool {
				return t.spec.ServiceAccountName != "" || t.spec.DeprecatedServiceAccount != "" || ptr.Deref(t.spec.AutomountServiceAccountToken, false)
			}},
		{`restartPolicy must be Never or left out: Clew itself starts a failed agent again`,
			func(t template) bool {
				return (t.spec.RestartPolicy != "" && t.spec.RestartPolicy != corev1.RestartPolicyNever) ||
					slices.ContainsFunc(t.spec.Containers, func(c corev1.Container) bool { return c.RestartPolicy != nil && *c.RestartPolicy != "Never" })
			}},
		{`activeDeadlineSeconds and ephemeralContainers cannot stand in the template: leave them out`,
			func(t template) bool {
				return t.spec.ActiveDeadlineSeconds != nil || len(t.spec.EphemeralContainers) > 0
			}},
		{`sysctls, SELinux users and roles, and Windows options are refused, since task pods run under the restricted Pod Security Standard: leave them out`,
			func(t template) bool {
				s := t.spec.SecurityContext
				return s != nil && (len(s.Sysctls) > 0 || loosens(s.SELinuxOptions) || s.WindowsOptions != nil)
			}},
	}
}

// containerRules returns the rules about every container.
func containerRules() []templateRule {
	return []templateRule{
		{`privileged containers are refused, since task pods run under the restricted Pod Security Standard: leave privileged, allowPrivilegeEscalation and procMount out`,
			anySecurity(func(s *corev1.SecurityContext) bool {
				return ptr.Deref(s.Privileged, false) || ptr.Deref(s.AllowPrivilegeEscalation, false) ||
					(s.ProcMount != nil && *s.ProcMount != corev1.DefaultProcMount) || s.WindowsOptions != nil || loosens(s.SELinuxOptions)
			})},
		{`added capabilities are refused, since task pods run under the restricted Pod Security Standard: leave capabilities.add out`,
			anySecurity(func(s *corev1.SecurityContext) bool { return s.Capabilities != nil && len(s.Capabilities.Add) > 0 })},
		{`task pods cannot run as root: choose a runAsUser other than 0, and leave runAsNonRoot out or set it to true`,
			func(t template) bool {
				s := t.spec.SecurityContext
				return (s != nil && asRoot(s.RunAsUser, s.RunAsNonRoot)) ||
					anySecurity(func(s *corev1.SecurityContext) bool { return asRoot(s.RunAsUser, s.RunAsNonRoot) })(t)
			}},
		{`seccomp and AppArmor profiles cannot be Unconfined, since task pods run under the restricted Pod Security Standard: leave them out`,
			func(t template) bool {
				s := t.spec.SecurityContext
				return (s != nil && unconfined(s.SeccompProfile, s.AppArmorProfile)) ||
					anySecurity(func(s *corev1.SecurityContext) bool { return unconfined(s.SeccompProfile, s.AppArmorProfile) })(t)
			}},
		{`hostPort is refused, since task pods run under the restricted Pod Security Standard: use a Service`,
			anyContainer(func(c corev1.Container) bool {
				return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 })
			})},
	}
}

// loosens reports whether the SELinux options set what the standard forbids.
func loosens(s *corev1.SELinuxOptions) bool { return s != nil && (s.User != "" || s.Role != "") }

// asRoot reports whether the user is root, or may be.
func asRoot(user *int64, nonRoot *bool) bool {
	return (user != nil && *user == 0) || (nonRoot != nil && !*nonRoot)
}

// unconfined reports whether a profile is Unconfined.
func unconfined(seccomp *corev1.SeccompProfile, appArmor *corev1.AppArmorProfile) bool {
	return (seccomp != nil && seccomp.Type == corev1.SeccompProfileTypeUnconfined) ||
		(appArmor != nil && appArmor.Type == corev1.AppArmorProfileTypeUnconfined)
}

// anyContainer lifts a condition of a container to the template.
func anyContainer(f func(corev1.Container) bool) func(template) bool {
	return func(t template) bool { return slices.ContainsFunc(t.containers, f) }
}

// anySecurity lifts a condition of a container's security context to the template.
func anySecurity(f func(*corev1.SecurityContext) bool) func(template) bool {
	return anyContainer(func(c corev1.Container) bool { return c.SecurityContext != nil && f(c.SecurityContext) })
}

// anyMount lifts a condition of a mount's path to the template.
func anyMount(f func(mountPath string) bool) func(template) bool {
	return anyContainer(func(c corev1.Container) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return f(m.MountPath) })
	})
}

// anyVolume lifts a condition of a volume to the template.
func anyVolume(f func(template, corev1.Volume) bool) func(template) bool {
	return func(t template) bool {
		return slices.ContainsFunc(t.spec.Volumes, func(v corev1.Volume) bool { return f(t, v) })
	}
}
