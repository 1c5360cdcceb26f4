package checkpoint

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// begunSets are the sets that this process has begun and that have not ended, with the objects that it has
// made for their members: the cache may not show either yet.
type begunSets struct {
	mu sync.Mutex
	// of is the set that was begun last of each supervisor.
	of map[types.NamespacedName]begunSet
	// made are the names of the objects, by the UID of the set.
	made map[types.UID]map[string]bool
}

// begunSet is the Checkpoint that names a set that has begun.
type begunSet struct {
	name string
	uid  types.UID
}

func supervisor(c *v1alpha1.Checkpoint) types.NamespacedName {
	return types.NamespacedName{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name}
}

// begins notes that a set begins, unless another one of the supervisor has begun and not ended: it returns
// that one then.
func (b *begunSets) begins(c *v1alpha1.Checkpoint) (other begunSet, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if other, ok := b.of[supervisor(c)]; ok && other.uid != c.UID {
		return other, false
	}
	if b.of == nil {
		b.of = map[types.NamespacedName]begunSet{}
	}
	b.of[supervisor(c)] = begunSet{c.Name, c.UID}
	return begunSet{}, true
}

// end forgets a set that has ended, or that has not begun after all.
func (b *begunSets) end(c *v1alpha1.Checkpoint) { b.drop(supervisor(c), c.UID) }

// drop forgets a set of a supervisor.
func (b *begunSets) drop(supervisor types.NamespacedName, set types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of[supervisor].uid == set {
		delete(b.of, supervisor)
	}
	delete(b.made, set)
}

// hasMade reports whether an object was made for a set.
func (b *begunSets) hasMade(c *v1alpha1.Checkpoint, name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.made[c.UID][name]
}

// noteMade notes that an object was made for a set, or was there.
func (b *begunSets) noteMade(c *v1alpha1.Checkpoint, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.made == nil {
		b.made = map[types.UID]map[string]bool{}
	}
	if b.made[c.UID] == nil {
		b.made[c.UID] = map[string]bool{}
	}
	b.made[c.UID][name] = true
}

// gone notes that a Checkpoint was deleted, which may name a set or be part of one.
func (b *begunSets) gone(c *v1alpha1.Checkpoint) {
	if c.Status.Set != nil || c.Spec.Scope == v1alpha1.CheckpointOfContract {
		b.end(c)
	}
	if part := c.Spec.PartOf; part != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.made[types.UID(part.UID)], c.Name)
	}
}
