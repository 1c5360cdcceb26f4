// Package relations keeps account, in memory, of what tasks have to do with each other: who is whose child,
// who is a member of which contract and leads it, and who waits for whom.
//
// It promises that a change of a task costs the goroutine that delivers it as many steps as that task has
// relations, however many others there are; that no more places in a contract, of its lead, and of a
// parent's children are given away than there are, whatever the cache shows; that a place that was given to
// a task and that it has not used goes to the next one; and that whoever waits for something that others
// do is woken by it: for a place, as many as there are places. Nothing of it is stored: the status of the
// Tasks is the truth, and a new process reads it again.
package relations

import (
	"container/list"
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/startpoint"
	"github.com/clew-dev/clew/internal/plan"
)

// Account is what is known of all tasks. The zero value is ready. It learns of them from Handler; its
// other methods are for the workers of the same controller, which begin when it has seen all that the
// cache has.
type Account struct {
	mu    sync.Mutex
	tasks map[types.NamespacedName]*entry
	// behind are the names of the tasks that a subject concerns.
	behind map[subject]sets.Set[string]
	rooms  map[room]*places
	// ready is true once the whole cache was seen.
	ready bool
	// queue is the controller's; nil until there is a task.
	queue Queue
}

// Queue is the part of the controller's queue that the account needs.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// entry is what is known of a task.
type entry struct {
	// is what the cache has of it.
	is plan.Relations
	// waits is why it cannot start, as was decided last.
	waits string
	// contract is the name of its contract, or of its parent's; "" for none.
	contract string
	subjects []subject
	// reserved are the rooms in which it has a place that the cache does not show.
	reserved sets.Set[room]
	// line is the room for a place in which it waits, and turn where it stands in that line; nil if it
	// waits for none.
	line room
	turn *list.Element
	// closed is true for a supervisor that takes no more children.
	closed bool
}

// Handler returns the handler of the events of Tasks.
func (a *Account) Handler() handler.EventHandler {
	news := startpoint.NewCheckpoint()
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, queue Queue) { a.changed(e.Object, queue, false) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, queue Queue) {
			a.changed(e.ObjectNew, queue, news.Update(e))
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, queue Queue) { a.gone(e.Object, queue) },
	}
}

// changed takes over what the cache has of a task.
func (a *Account) changed(object client.Object, queue Queue, newCheckpoint bool) {
	task, ok := object.(*v1alpha1.Task)
	if !ok {
		return
	}
	now, name := plan.RelationsOf(task), client.ObjectKeyFromObject(task)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queue = queue
	e := a.tasks[name]
	if e != nil && e.is.UID != now.UID { // another one had the name
		a.drop(name, e)
		e = nil
	}
	if e == nil {
		e = a.add(name)
	}
	if newCheckpoint {
		a.lookUp(ofSource, name)
	}
	was := e.is
	if was.Equal(now) {
		return
	}
	e.is, e.waits = now, now.Waits
	a.hold(name, e, was)
	a.relate(name, e)
	a.tell(name, was, now)
}

// gone forgets a task that is gone, unless another one has its name by now.
func (a *Account) gone(object client.Object, queue Queue) {
	name := client.ObjectKeyFromObject(object)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queue = queue
	if e := a.tasks[name]; e != nil && e.is.UID == string(object.GetUID()) {
		a.drop(name, e)
	}
}

// add returns a new entry. The caller holds mu.
func (a *Account) add(name types.NamespacedName) *entry {
	if a.tasks == nil {
		a.tasks, a.behind = map[types.NamespacedName]*entry{}, map[subject]sets.Set[string]{}
	}
	e := &entry{reserved: sets.Set[room]{}}
	a.tasks[name] = e
	return e
}

// drop forgets a task, with its places. The caller holds mu.
func (a *Account) drop(name types.NamespacedName, e *entry) {
	was := e.is
	a.leave(e)
	delete(a.tasks, name)
	e.is, e.waits = plan.Relations{}, ""
	for in := range e.reserved {
		a.giveBack(in, e, was.UID)
	}
	a.hold(name, e, was)
	a.relate(name, e)
	a.tell(name, was, e.is)
}

// of returns the entry of a task; nil if another one has its name, or none. The caller holds mu. The first
// worker that asks finds that the whole cache was seen.
func (a *Account) of(task *v1alpha1.Task) *entry {
	if !a.ready {
		a.ready = true
		for in := range a.rooms {
			a.admit(in)
		}
	}
	if e := a.tasks[client.ObjectKeyFromObject(task)]; e != nil && e.is.UID == string(task.UID) {
		return e
	}
	return nil
}

// parentOf returns the entry of the task that has the name of a task's parent; nil if there is none. The
// caller holds mu.
func (a *Account) parentOf(name types.NamespacedName, e *entry) *entry {
	if e.is.ParentName == "" {
		return nil
	}
	return a.tasks[types.NamespacedName{Namespace: name.Namespace, Name: e.is.ParentName}]
}

// relate brings what a task is behind, and the line in which it waits, up to date. The caller holds mu.
func (a *Account) relate(name types.NamespacedName, e *entry) {
	e.contract = e.is.Contract
	if parent := a.parentOf(name, e); e.contract == "" && parent != nil {
		e.contract = parent.is.Contract
	}
	a.stand(name, e)
	in, waits := a.lineOf(name, e)
	if waits && e.turn != nil && e.line == in {
		return
	}
	a.leave(e)
	if waits {
		p := a.placesOf(in)
		e.line, e.turn = in, p.line.PushBack(name)
		a.admit(in)
	}
}

// lineOf returns the room of which a task waits for a place. The caller holds mu.
func (a *Account) lineOf(name types.NamespacedName, e *entry) (in room, waits bool) {
	switch parent := a.parentOf(name, e); {
	case e.waits == v1alpha1.ReasonChildLimitReached && parent != nil:
		in = room{childrenRoom, name.Namespace, parent.is.UID}
	case e.waits == v1alpha1.ReasonContractFull && e.contract != "":
		in = room{contractRoom, name.Namespace, e.contract}
	case e.waits == v1alpha1.ReasonWaitingForContract && e.contract != "":
		in = room{leadRoom, name.Namespace, e.contract}
	default:
		return room{}, false
	}
	return in, !e.reserved.Has(in)
}
