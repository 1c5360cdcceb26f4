// Package cached says what the manager's cache keeps of each kind: what decisions read, and no more.
// Whatever acts reads the API server.
//
// It promises that nobody can make an object take much of the manager's memory: what a user writes at
// length, such as a pod template, a prompt or an annotation, is not kept, and of a pod or a claim that
// only pretends to be Clew's nothing is but its name.
package cached

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// Options returns the options of the manager's cache. Of pods and claims, it lists those with Clew's label
// only.
func Options() cache.Options {
	ours := labels.SelectorFromSet(labels.Set{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy})
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:                    {Label: ours, Transform: kept(pod)},
			&corev1.PersistentVolumeClaim{}:  {Label: ours, Transform: kept(claim)},
			&corev1.Node{}:                   {Transform: kept(node)},
			&v1alpha1.Task{}:                 {Transform: kept(task)},
			&v1alpha1.Checkpoint{}:           {Transform: kept(checkpoint)},
			&v1alpha1.Fork{}:                 {Transform: kept(fork)},
			&v1alpha1.ConversationSnapshot{}: {Transform: kept(snapshot)},
		},
	}
}

// kept makes the transform of a kind of a function that drops parts of an object. What the watch tells of an
// object that was deleted unseen is passed on.
func kept[T any](drop func(*T)) func(any) (any, error) {
	return func(object any) (any, error) {
		if o, ok := object.(*T); ok {
			drop(o)
		}
		return object, nil
	}
}

// trim drops what no decision reads of an object's metadata: of labels and annotations all but Clew's own.
func trim(m *metav1.ObjectMeta) {
	m.ManagedFields, m.GenerateName = nil, ""
	m.Labels = only(m.Labels, v1alpha1.LabelManagedBy,
		v1alpha1.LabelTask, v1alpha1.LabelTaskUID, v1alpha1.LabelAttempt, v1alpha1.LabelPublication, v1alpha1.LabelCheckpoint, v1alpha1.LabelSnapshot,
		v1alpha1.LabelFork, v1alpha1.LabelContract, v1alpha1.LabelRole, v1alpha1.LabelPhase, v1alpha1.LabelParent)
	m.Annotations = only(m.Annotations, v1alpha1.AnnotationGeneration, v1alpha1.AnnotationPodDigest, v1alpha1.AnnotationForkManager, v1alpha1.AnnotationForkUID)
	// New slices: those that came have room for all that was there.
	m.Finalizers, m.OwnerReferences = finalizers(m.Finalizers), owners(m.OwnerReferences)
}

// finalizers keeps Clew's own.
func finalizers(all []string) []string {
	if slices.Contains(all, v1alpha1.TaskFinalizer) {
		return []string{v1alpha1.TaskFinalizer}
	}
	return nil
}

// owners keeps the object of Clew's that controls what it owns. The API server bounds none of its texts.
func owners(all []metav1.OwnerReference) []metav1.OwnerReference {
	i := slices.IndexFunc(all, isController)
	if i < 0 || len(all[i].Kind)+len(all[i].Name)+len(all[i].UID) > maxOwner {
		return nil
	}
	return []metav1.OwnerReference{all[i]}
}

// maxOwner bounds what names an owner, in bytes: no object has a longer name.
const maxOwner = 512

// maxValue bounds, in bytes, the value of a label or an annotation that is kept.
const maxValue = 256

// only returns the values of these keys.
func only(all map[string]string, keys ...string) map[string]string {
	found := maps.Clone(all)
	maps.DeleteFunc(found, func(key, value string) bool { return !slices.Contains(keys, key) || len(value) > maxValue })
	if len(found) == 0 {
		return nil
	}
	// Not the clone, which has room for all that was there.
	return maps.Collect(maps.All(found))
}

// isController reports whether an owner is an object of Clew's that controls what it owns.
func isController(o metav1.OwnerReference) bool {
	return o.Controller != nil && *o.Controller && o.APIVersion == v1alpha1.GroupVersion.String()
}
