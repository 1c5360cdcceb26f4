package checkpoint

import (
	"context"
	"errors"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/cached"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
)

// A Checkpoint that a person applies without a number stands for the moment at which it was taken. The
// history keeps its name with that moment: applied again to a task that continues the history of a
// former one, it stands for the same moment, and no other is taken. An object that is deleted while its
// task exists gives its name up.

// recall returns the checkpoint that an object of this name stood for, of the former task that the task
// continues; nil for none.
func (r *Reconciler) recall(ctx context.Context, c *v1alpha1.Checkpoint, task *v1alpha1.Task) (*history.Checkpoint, error) {
	if a := task.Status.Adoption; a == nil || a.TaskUID == "" {
		return nil, nil
	}
	key := history.Key{Namespace: task.Namespace, UID: string(task.UID)}
	number, err := r.Store.ClaimCheckpoint(ctx, key, c.Name, string(c.UID))
	if errors.Is(err, history.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	row, err := r.Store.Checkpoint(ctx, key, number)
	return &row, err
}

// names are what this process knows of the names of Checkpoints. Its zero value is empty.
type names struct {
	mu sync.Mutex
	// kept is the UID of the task with whose history the name of an object is kept, by the object's
	// UID.
	kept map[types.UID]string
	// deleted are the objects that were deleted and whose names have yet to be given up.
	deleted map[types.NamespacedName][]v1alpha1.Checkpoint
	// waiting counts these.
	waiting int
}

// maxDeleted bounds how many deleted objects are remembered while the history store cannot be
// reached. The others keep their names.
const maxDeleted = 10_000

// has reports whether the name of an object is kept with the history of the task.
func (n *names) has(c *v1alpha1.Checkpoint, taskUID string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.kept[c.UID] == taskUID
}

func (n *names) keep(c *v1alpha1.Checkpoint, taskUID string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kept == nil {
		n.kept = map[types.UID]string{}
	}
	n.kept[c.UID] = taskUID
}

// doubt forgets which names are kept: the history store may be an older copy.
func (n *names) doubt() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.kept)
}

// remove remembers that an object was deleted.
func (n *names) remove(c *v1alpha1.Checkpoint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.kept, c.UID)
	if !keepsName(c) || c.Status.TaskUID == "" || n.waiting >= maxDeleted {
		return
	}
	if n.deleted == nil {
		n.deleted = map[types.NamespacedName][]v1alpha1.Checkpoint{}
	}
	key := client.ObjectKeyFromObject(c)
	n.deleted[key] = append(n.deleted[key], *cached.Slim(c))
	n.waiting++
}

// removed returns the objects of a name that were deleted.
func (n *names) removed(key types.NamespacedName) []v1alpha1.Checkpoint {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.deleted[key])
}

// givenUp forgets a deleted object.
func (n *names) givenUp(key types.NamespacedName, uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := len(n.deleted[key])
	n.deleted[key] = slices.DeleteFunc(n.deleted[key], func(c v1alpha1.Checkpoint) bool { return c.UID == uid })
	n.waiting -= before - len(n.deleted[key])
	if len(n.deleted[key]) == 0 {
		delete(n.deleted, key)
	}
}

// keepsName reports whether the history keeps the name of an object: a person has applied it without a
// number. The objects that the manager makes for a set have names of their own in each set.
func keepsName(c *v1alpha1.Checkpoint) bool {
	_, _, ours := resources.CheckpointNumber(c)
	return !ours && c.Spec.Number == nil && c.Spec.PartOf == nil
}

// recordName records for which checkpoint an object stands, once for each task that has the history,
// and again whenever this process cannot know that the history store has it.
func (r *Reconciler) recordName(ctx context.Context, c *v1alpha1.Checkpoint, taskUID string, number int64) error {
	if !keepsName(c) || r.names.has(c, taskUID) {
		return nil
	}
	err := r.Store.NameCheckpoint(ctx, history.Key{Namespace: c.Namespace, UID: taskUID},
		history.NamedCheckpoint{Name: c.Name, UID: string(c.UID), Number: number})
	if errors.Is(err, history.ErrNotFound) {
		return nil // the history was deleted, or has yet to be sent again
	}
	if err == nil {
		r.names.keep(c, taskUID)
	}
	return err
}

// giveUpNames has the history forget the name of an object that was deleted while its task exists: the
// next object of the name stands for a moment of its own. With the task, or the namespace, nobody
// says whether it is to be applied again, so the name stays.
func (r *Reconciler) giveUpNames(ctx context.Context, key types.NamespacedName) error {
	for _, c := range r.names.removed(key) {
		stays, err := r.staysWithout(ctx, &c)
		if err != nil {
			return err
		}
		if stays {
			err := r.Store.ForgetCheckpointName(ctx, history.Key{Namespace: c.Namespace, UID: c.Status.TaskUID},
				history.NamedCheckpoint{Name: c.Name, UID: string(c.UID), Number: c.Status.Number})
			if err != nil && !errors.Is(err, history.ErrNotFound) {
				return err
			}
		}
		r.names.givenUp(key, c.UID)
	}
	return nil
}

// staysWithout reports whether the task of a deleted Checkpoint stays.
func (r *Reconciler) staysWithout(ctx context.Context, c *v1alpha1.Checkpoint) (bool, error) {
	task, namespace := &metav1.PartialObjectMetadata{}, &metav1.PartialObjectMetadata{}
	task.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Task"))
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name}, task)
	if err == nil {
		err = r.Live.Get(ctx, client.ObjectKey{Name: c.Namespace}, namespace)
	}
	if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return string(task.UID) == c.Status.TaskUID && task.DeletionTimestamp == nil && namespace.DeletionTimestamp == nil, nil
}
