package family

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/broadcast"
	"github.com/clew-dev/clew/internal/history"
)

// maxWaiting is how many tasks that name a parent and are not its children yet are told of, the oldest ones:
// no parent can have more children. Anybody may apply any number of others.
const maxWaiting = 1000

// children are the tasks that name one parent.
type children struct {
	byUID map[types.UID]*v1alpha1.Task
	// byParent are the same tasks by the UID of the parent that has them, and those at "" that nobody has
	// yet, each list oldest first.
	byParent map[string][]*v1alpha1.Task
	changed  broadcast.Change
}

// parentUID returns the UID of the task whose child a task is; "" if it is nobody's yet.
func parentUID(t *v1alpha1.Task) string {
	if p := t.Status.Parent; p != nil {
		return p.UID
	}
	return ""
}

func byAge(a, b *v1alpha1.Task) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name), strings.Compare(string(a.UID), string(b.UID)))
}

// put records the current state of a task.
func (c *children) put(t *v1alpha1.Task) {
	c.drop(t.UID)
	c.byUID[t.UID] = t
	list := c.byParent[parentUID(t)]
	at, _ := slices.BinarySearchFunc(list, t, byAge)
	c.byParent[parentUID(t)] = slices.Insert(list, at, t)
}

// drop forgets a task, if it is known.
func (c *children) drop(uid types.UID) {
	t := c.byUID[uid]
	if t == nil {
		return
	}
	delete(c.byUID, uid)
	list := c.byParent[parentUID(t)]
	if at, found := slices.BinarySearchFunc(list, t, byAge); found {
		list = slices.Delete(list, at, at+1)
	}
	if c.byParent[parentUID(t)] = list; len(list) == 0 {
		delete(c.byParent, parentUID(t))
	}
}

// of returns copies of the lists of those that a supervisor has, and of those that may become its own.
func (c *children) of(uid string) (own, waiting []*v1alpha1.Task) {
	waiting = c.byParent[""]
	return slices.Clone(c.byParent[uid]), slices.Clone(waiting[:min(len(waiting), maxWaiting)])
}

func (f *Family) set(object any) {
	if t, ok := object.(*v1alpha1.Task); ok {
		f.Set(t)
	}
}

func (f *Family) remove(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if t, ok := object.(*v1alpha1.Task); ok {
		f.Remove(t)
	}
}

// parentOf returns the name of a task's parent, which never changes; false if it has none.
func parentOf(t *v1alpha1.Task) (types.NamespacedName, bool) {
	if t.Spec.ParentRef == nil {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: t.Namespace, Name: t.Spec.ParentRef.Name}, true
}

// Set records the current state of a Task, which must not be changed any more.
func (f *Family) Set(t *v1alpha1.Task) {
	parent, ok := parentOf(t)
	if !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.byParent[parent]
	if c == nil {
		c = &children{byUID: map[types.UID]*v1alpha1.Task{}, byParent: map[string][]*v1alpha1.Task{}}
		f.byParent[parent] = c
		f.firstborn.Announce()
	}
	c.put(t)
	c.changed.Announce()
}

// Remove forgets a Task that was deleted.
func (f *Family) Remove(t *v1alpha1.Task) {
	parent, _ := parentOf(t)
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.byParent[parent]
	if c == nil {
		return
	}
	c.drop(t.UID)
	if len(c.byUID) == 0 {
		delete(f.byParent, parent)
	}
	c.changed.Announce()
}

// look runs a function on the tasks that name a supervisor, nil if there are none, and returns a channel
// that is closed when they may have changed. All families share the lock that is held meanwhile.
func (f *Family) look(supervisor history.Task, at func(*children)) (changed <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.synced == nil || !f.synced() {
		return nil, refuse("Clew's server has just started, and does not know your tasks yet: call the tool again in some seconds.")
	}
	c := f.byParent[types.NamespacedName{Namespace: supervisor.Namespace, Name: supervisor.Name}]
	if c == nil {
		return f.firstborn.Next(), nil
	}
	at(c)
	return c.changed.Next(), nil
}

// of returns the tasks of a supervisor, and a channel that is closed when they may have changed.
func (f *Family) of(supervisor history.Task) (of tasks, changed <-chan struct{}, err error) {
	var own, waiting []*v1alpha1.Task
	if changed, err = f.look(supervisor, func(c *children) { own, waiting = c.of(supervisor.UID) }); err != nil {
		return of, nil, err
	}
	all := append(own, waiting...)
	slices.SortFunc(all, byAge)
	return tasksOf(supervisor.Name, all), changed, nil
}

// awaitedOf is of for the tasks that are waited for, nil for each that is not the supervisor's any more.
func (f *Family) awaitedOf(supervisor history.Task, wanted []awaited) (found []*v1alpha1.Task, changed <-chan struct{}, err error) {
	found = make([]*v1alpha1.Task, len(wanted))
	changed, err = f.look(supervisor, func(c *children) {
		for i, a := range wanted {
			if t := c.byUID[a.uid]; t != nil && (parentUID(t) == "" || parentUID(t) == supervisor.UID) {
				found[i] = t
			}
		}
	})
	return found, changed, err
}
