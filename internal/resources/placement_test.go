package resources_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

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
