package resources

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// avoidNode keeps a pod off a node, in addition to what its affinity requires already. It does
// nothing if the name is empty.
func avoidNode(spec *corev1.PodSpec, node string) {
	if node == "" {
		return
	}
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	affinity := spec.Affinity.NodeAffinity
	if affinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}
	}
	// One of the terms has to match, so each has to exclude the node. Its label with the host
	// name need not be the node's name.
	terms := affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		terms[i].MatchFields = append(terms[i].MatchFields, corev1.NodeSelectorRequirement{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpNotIn, Values: []string{node},
		})
	}
}

// stayOnNode keeps Kubernetes from deleting a pod whose node cannot be reached, unless the template says
// when it is to: Clew itself decides on that, as the task's nodeLoss says. Two that count the same time
// would stop an agent whose node is back in between.
func stayOnNode(spec *corev1.PodSpec) {
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if !slices.ContainsFunc(spec.Tolerations, func(t corev1.Toleration) bool { return staysDespite(t, taint) }) {
			spec.Tolerations = append(spec.Tolerations, corev1.Toleration{
				Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
			})
		}
	}
}

// staysDespite reports whether a toleration is about how long a pod stays on a node with a taint, of any
// value.
func staysDespite(t corev1.Toleration, taint string) bool {
	return (t.Key == taint || t.Key == "") && t.Operator == corev1.TolerationOpExists &&
		(t.Effect == corev1.TaintEffectNoExecute || t.Effect == "")
}

// AvoidedNode returns the node that avoidNode keeps a pod off; "" for none.
func AvoidedNode(pod *corev1.Pod) string {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		i := slices.IndexFunc(term.MatchFields, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == metav1.ObjectNameField && r.Operator == corev1.NodeSelectorOpNotIn && len(r.Values) == 1
		})
		if i >= 0 {
			return term.MatchFields[i].Values[0]
		}
	}
	return ""
}
