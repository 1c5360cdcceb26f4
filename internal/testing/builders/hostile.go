package builders

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// Hostile is metadata as large as anybody can make it: the API server bounds annotations, but neither how
// many labels, finalizers and owners there are, nor an owner's name.
func Hostile(name string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Namespace: "team", Name: name, UID: "uid-1", ResourceVersion: "7", Generation: 2, Labels: map[string]string{}, GenerateName: "x",
		Annotations: map[string]string{"large": strings.Repeat("x", 200<<10), v1alpha1.AnnotationForkManager: strings.Repeat("x", 50<<10)},
	}
	for i := range 5000 {
		m.Labels[fmt.Sprintf("label-%d", i)] = strings.Repeat("x", 60)
		m.Finalizers = append(m.Finalizers, fmt.Sprintf("example.com/finalizer-%d", i))
		m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: fmt.Sprintf("owner-%d", i)})
	}
	m.Finalizers = append(m.Finalizers, v1alpha1.TaskFinalizer)
	return m
}

// HostileOwner is one of Clew's objects, as anybody can name it, that controls what it owns.
func HostileOwner() metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Task", Name: strings.Repeat("x", 1<<20), UID: "uid-1", Controller: ptr.To(true)}
}
