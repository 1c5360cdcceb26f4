package crash_test

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// collect plays the part of the garbage collector: what belongs to a task that is gone goes.
func (k *kubelet) collect(ctx context.Context) error {
	owned, err := k.owned(ctx, "")
	if err != nil {
		return err
	}
	// The owners are read last: an object is never older than its owner.
	tasks := &v1alpha1.TaskList{}
	if err := k.Client.List(ctx, tasks, client.InNamespace(k.namespace)); err != nil {
		return err
	}
	exists := map[types.UID]bool{}
	for _, t := range tasks.Items {
		exists[t.UID] = true
	}
	for _, o := range owned {
		if exists[o.GetOwnerReferences()[0].UID] {
			continue
		}
		if err := k.discard(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// owned returns the objects that belong to the task with a UID; to any if it is empty.
func (k *kubelet) owned(ctx context.Context, uid string) (owned []client.Object, err error) {
	lists := []client.ObjectList{&corev1.PersistentVolumeClaimList{}, &v1alpha1.CheckpointList{}, &v1alpha1.ConversationSnapshotList{}, &corev1.PodList{}}
	for _, list := range lists {
		if err := k.Client.List(ctx, list, client.InNamespace(k.namespace)); err != nil {
			return nil, err
		}
	}
	for _, o := range objectsOf(lists) {
		owners := o.GetOwnerReferences()
		if len(owners) > 0 && owners[0].Kind == "Task" && (uid == "" || uid == string(owners[0].UID)) {
			owned = append(owned, o)
		}
	}
	return owned, nil
}

// discard deletes an object, whatever protects it.
func (k *kubelet) discard(ctx context.Context, o client.Object) error {
	if len(o.GetFinalizers()) > 0 {
		o.SetFinalizers(nil)
		if err := k.Client.Update(ctx, o); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	return client.IgnoreNotFound(k.Client.Delete(ctx, o, client.GracePeriodSeconds(0)))
}

// objectsOf returns the objects of lists.
func objectsOf(lists []client.ObjectList) (all []client.Object) {
	for _, list := range lists {
		switch l := list.(type) {
		case *corev1.PersistentVolumeClaimList:
			for i := range l.Items {
				all = append(all, &l.Items[i])
			}
		case *v1alpha1.CheckpointList:
			for i := range l.Items {
				all = append(all, &l.Items[i])
			}
		case *v1alpha1.ConversationSnapshotList:
			for i := range l.Items {
				all = append(all, &l.Items[i])
			}
		case *corev1.PodList:
			for i := range l.Items {
				all = append(all, &l.Items[i])
			}
		}
	}
	return all
}
