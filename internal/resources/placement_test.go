package resources_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
)

func TestAPodIsKeptOffANode(t *testing.T) {
	zone := func(name string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}
	}
	off := func(term corev1.NodeSelectorTerm) corev1.NodeSelectorTerm {
		term.MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"node-7"}}}
		return term
	}
	for name, c := range map[string]struct{ required, want []corev1.NodeSelectorTerm }{
		"that may run anywhere":     {nil, []corev1.NodeSelectorTerm{off(corev1.NodeSelectorTerm{})}},
		"that may run in two zones": {[]corev1.NodeSelectorTerm{zone("a"), zone("b")}, []corev1.NodeSelectorTerm{off(zone("a")), off(zone("b"))}},
	} {
		t.Run(name, func(t *testing.T) {
			given := task(func(t *v1alpha1.Task) {
				if c.required != nil {
					t.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: c.required}}}
				}
			})
			pod := newPod(t, resources.PodRequest{Task: given, AvoidedNode: "node-7"})
			got := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("terms (-want +got):\n%s", diff)
			}
			if node := resources.AvoidedNode(pod); node != "node-7" {
				t.Errorf("the avoided node is %q", node)
			}
			if node := resources.AvoidedNode(newPod(t, resources.PodRequest{Task: given})); node != "" {
				t.Errorf("the pod of another attempt avoids %q", node)
			}
		})
	}
}

func TestKubernetesDeletesNoPodWhoseNodeCannotBeReached(t *testing.T) {
	stays := func(key string) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	}
	notReady, unreachable := stays("node.kubernetes.io/not-ready"), stays("node.kubernetes.io/unreachable")
	soon := unreachable
	soon.TolerationSeconds = ptr.To[int64](10)
	gpu := corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpEqual, Value: "big", Effect: corev1.TaintEffectNoSchedule}
	all := corev1.Toleration{Operator: corev1.TolerationOpExists}
	for name, c := range map[string]struct{ given, want []corev1.Toleration }{
		"whatever the template tolerates":      {[]corev1.Toleration{gpu}, []corev1.Toleration{gpu, notReady, unreachable}},
		"unless the template says when":        {[]corev1.Toleration{soon}, []corev1.Toleration{soon, notReady}},
		"and twice is not needed":              {[]corev1.Toleration{all}, []corev1.Toleration{all}},
		"without a toleration of the template": {nil, []corev1.Toleration{notReady, unreachable}},
	} {
		pod := newPod(t, resources.PodRequest{Task: task(func(t *v1alpha1.Task) { t.Spec.Template.Spec.Tolerations = c.given })})
		if diff := cmp.Diff(c.want, pod.Spec.Tolerations); diff != "" {
			t.Errorf("%s: tolerations (-want +got):\n%s", name, diff)
		}
	}
}

func TestTheClaimsOfATaskFollowOneAnother(t *testing.T) {
	given := task()
	for _, want := range []string{"tidy-up-workspace", "tidy-up.2-workspace", "tidy-up.3-workspace"} {
		if got := resources.ClaimOf(given); got != want {
			t.Fatalf("the claim is %s, want %s", got, want)
		}
		if got := resources.MountedClaim(newPod(t, resources.PodRequest{Task: given})); got != want {
			t.Errorf("the pod mounts %s, want %s", got, want)
		}
		if got := resources.NewClaim(given, "").Name; got != want {
			t.Errorf("the claim that is made is %s, want %s", got, want)
		}
		given.Status.ClaimName = resources.NextClaimName(given.Name, resources.ClaimOf(given))
	}
}
