package resources

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// restricted returns the violations that Kubernetes' own evaluator of the restricted Pod
// Security Standard finds in a task's template, after Clew has set the fields that may be left
// out. The rules of ValidateTemplate come first, since their sentences say what to do; this
// covers what they do not.
func restricted(task *v1alpha1.Task) error {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return fmt.Errorf("set up the checks of the Pod Security Standards: %w", err)
	}
	b := podBuilder{spec: task.Spec.Template.Spec.DeepCopy()}
	b.restrictPod()
	b.restrictContainers()
	meta := metav1.ObjectMeta{Labels: task.Spec.Template.Labels, Annotations: task.Spec.Template.Annotations}
	level := psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}
	if result := policy.AggregateCheckResults(evaluator.EvaluatePod(level, &meta, b.spec)); !result.Allowed {
		return fmt.Errorf("the template violates the restricted Pod Security Standard, which task pods run under: remove this from it: %s", result.ForbiddenDetail())
	}
	return nil
}

// appArmorAnnotation is the prefix of the annotations with a container's AppArmor profile.
const appArmorAnnotation = "container.apparmor.security.beta.kubernetes.io/"

// hostRules returns the rules about the node that a pod runs on.
func hostRules() []templateRule {
	return []templateRule{
		{`the SELinux type can only be container_t, container_init_t, container_kvm_t or container_engine_t, since task pods run under the restricted Pod Security Standard: leave seLinuxOptions.type out`,
			func(t template) bool {
				s := t.spec.SecurityContext
				return (s != nil && strangeType(s.SELinuxOptions)) ||
					anySecurity(func(s *corev1.SecurityContext) bool { return strangeType(s.SELinuxOptions) })(t)
			}},
		{`AppArmor annotations can only be runtime/default or localhost/NAME, since task pods run under the restricted Pod Security Standard: leave them out`,
			func(t template) bool {
				for key, value := range t.notes {
					if strings.HasPrefix(key, appArmorAnnotation) && value != "" && value != "runtime/default" && !strings.HasPrefix(value, "localhost/") {
						return true
					}
				}
				return false
			}},
		{`probes and lifecycle hooks cannot name a host, since the node itself would call it: leave host out, and the pod is called`,
			anyContainer(callsHost)},
	}
}

// strangeType reports whether the SELinux type is one that the standard forbids.
func strangeType(s *corev1.SELinuxOptions) bool {
	return s != nil && !slices.Contains([]string{"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}, s.Type)
}

// callsHost reports whether a probe or a hook of the container makes the kubelet call another
// host than the pod.
func callsHost(c corev1.Container) bool {
	var handlers []corev1.LifecycleHandler
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p != nil {
			handlers = append(handlers, corev1.LifecycleHandler{HTTPGet: p.HTTPGet, TCPSocket: p.TCPSocket})
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				handlers = append(handlers, *h)
			}
		}
	}
	return slices.ContainsFunc(handlers, func(h corev1.LifecycleHandler) bool {
		return (h.HTTPGet != nil && h.HTTPGet.Host != "") || (h.TCPSocket != nil && h.TCPSocket.Host != "")
	})
}
