// Package places keeps account of the tasks that run and of those that wait for a place, in memory.
// Package queue decides who is next.
//
// It promises that no place is given away before the whole cache was seen; that a place that was given
// to a task is its own until the cache shows what the task has made of it, or the task gives it back;
// and that a free place wakes the tasks that are next, and no others. Nothing of it is stored: the
// status of the Tasks is the truth, and a new process reads it again.
package places

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/queue"
)

// Places are those of all tasks that may run at once: in the cluster and in each namespace as the limits
// say that New has got, and of the children of each supervisor as its spec says. Of a limit of the
// cluster alone, each namespace has a share. The methods of a nil
// Places limit nothing. A Places is a source of requests for the tasks that are next.
type Places struct {
	limits queue.Limits

	mu    sync.Mutex
	queue *queue.Queue
	tasks map[types.NamespacedName]*entry
	// ready is true once the whole cache was seen.
	ready bool
	// wake enqueues a task; nil until the controller has started.
	wake func(reconcile.Request)

	cache cache.Cache
	// seen is closed when the informer has been asked for, and then has either field.
	seen   chan struct{}
	synced toolscache.InformerSynced
	failed error
}

// entry is what is known of a task.
type entry struct {
	uid types.UID
	// created is when the task was.
	created time.Time
	// newest is the number of its newest attempt.
	newest int64
	// holds is true if the task has a place, as the cache has its status.
	holds bool
	// granted is true if it was given a place of which the cache shows nothing yet: an attempt with a
	// number above after.
	granted bool
	after   int64
}

// New returns the places under limits. The tasks are read from the cache.
func New(limits queue.Limits, tasks cache.Cache) *Places {
	limits = limits.Shared()
	return &Places{limits: limits, queue: queue.New(limits), tasks: map[types.NamespacedName]*entry{}, cache: tasks, seen: make(chan struct{})}
}

// Start implements source.Source.
func (p *Places) Start(ctx context.Context, requests workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	p.mu.Lock()
	p.wake = requests.Add
	p.mu.Unlock()
	go func() {
		defer close(p.seen)
		p.synced, p.failed = p.watch(ctx)
	}()
	return nil
}

// watch begins to follow the cache, and returns when all that it has was seen.
func (p *Places) watch(ctx context.Context) (toolscache.InformerSynced, error) {
	informer, err := p.cache.GetInformer(ctx, &v1alpha1.Task{})
	if err != nil {
		return nil, err
	}
	registered, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    p.changed,
		UpdateFunc: func(_, object any) { p.changed(object) },
		DeleteFunc: p.deleted,
	})
	if err != nil {
		return nil, err
	}
	return registered.HasSynced, nil
}

// WaitForSync implements source.SyncingSource: no task is reconciled before the whole cache was seen.
func (p *Places) WaitForSync(ctx context.Context) error {
	select {
	case <-p.seen:
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.failed != nil {
		return fmt.Errorf("watch the tasks that run: %w", p.failed)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), p.synced) {
		return errors.New("the tasks that run were not seen in time")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = true
	p.admit("")
	return nil
}

// String names the source in logs.
func (p *Places) String() string { return "places" }

func (p *Places) changed(object any) {
	if task, ok := object.(*v1alpha1.Task); ok {
		p.observe(task)
	}
}

func (p *Places) deleted(object any) {
	if gone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	task, ok := object.(*v1alpha1.Task)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	name := nameOf(task)
	if e := p.tasks[name]; e != nil && e.uid != task.UID {
		return // it is known already that another task has its name
	}
	p.forget(name)
	p.queue.SetLimit(name, 0)
	p.admit("")
}

// observe takes over what the cache has of a task.
func (p *Places) observe(task *v1alpha1.Task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := nameOf(task)
	if known := p.tasks[name]; known != nil && known.uid != task.UID && task.CreationTimestamp.Time.Before(known.created) {
		return // news of a former task of that name
	}
	e := p.entryOf(task)
	e.holds = plan.HoldsPlace(task)
	if e.newest > e.after {
		e.granted = false
	}
	p.queue.SetLimit(name, plan.AtOnceOf(task))
	if e.holds || e.granted {
		p.queue.Hold(name, queue.Of(task).Parent)
	} else {
		p.queue.Free(name)
	}
	if p.queue.Waits(name) || isQueued(task) {
		p.queue.Join(queue.Of(task))
	}
	p.admit("")
}

// Look returns what a task would find if it asked for a place.
func (p *Places) Look(task *v1alpha1.Task) plan.Queue {
	if p == nil {
		return plan.Queue{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answer(task)
}

// Ask gives a task a place, if it is its turn, or makes it wait. Settle must follow.
func (p *Places) Ask(task *v1alpha1.Task) plan.Queue {
	if p == nil {
		return plan.Queue{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave(task, plan.HoldsPlace(task))
	p.queue.Join(queue.Of(task))
	p.admit(string(task.UID))
	return p.answer(task)
}

// leave frees the place that the cache says a task has and that it has given up by now. The caller, who
// has read or written a newer status, holds mu.
func (p *Places) leave(task *v1alpha1.Task, holds bool) {
	if e := p.entryOf(task); e.holds && !holds && !e.granted {
		e.holds = false
		p.queue.Free(nameOf(task))
	}
}

// Settle says what was decided for a task: queued, if it waits for its turn, and holds, if it has used
// its place. Otherwise it gives back what it may have asked for.
func (p *Places) Settle(task *v1alpha1.Task, queued, holds bool) {
	if p == nil || holds {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	name := nameOf(task)
	if queued { // it may have left the queue for something that has passed, and its status says nothing of that
		p.leave(task, false)
		p.queue.Join(queue.Of(task))
		p.admit("")
		return
	}
	e := p.tasks[name]
	if e == nil || e.uid != task.UID {
		return
	}
	p.queue.Leave(name)
	if e.granted && !e.holds {
		e.granted = false
		p.queue.Free(name)
		p.admit("")
	}
}

// answer returns what a task finds. The caller holds mu.
func (p *Places) answer(task *v1alpha1.Task) plan.Queue {
	name, parent := nameOf(task), queue.Of(task).Parent
	reached := p.queue.Reached(task.Namespace, parent)
	found := plan.Queue{
		OfParent: reached == queue.OfParent, OfNamespace: reached == queue.OfNamespace,
		Maximum: p.limits.Total, MaximumPerNamespace: p.limits.PerNamespace,
		Parent: parent, MaximumOfParent: p.queue.LimitOf(types.NamespacedName{Namespace: task.Namespace, Name: parent}),
	}
	found.Limited = found.Maximum > 0 || found.MaximumPerNamespace > 0 || found.MaximumOfParent > 0
	if e := p.tasks[name]; e != nil && e.uid == task.UID && p.queue.Holds(name) {
		found.Wanted = plan.AgentStarts(task) && p.queue.Wanted(name)
	} else {
		found.Waits = reached != queue.NoLimit || !p.ready
	}
	return found
}

// admit gives away the free places, and wakes the tasks that got one, apart from the one that asks
// with this UID. The caller holds mu.
func (p *Places) admit(asks string) {
	if !p.ready {
		return
	}
	for _, name := range p.queue.Admit() {
		e := p.tasks[name]
		e.granted, e.after = true, e.newest
		if string(e.uid) != asks {
			p.wake(reconcile.Request{NamespacedName: name})
		}
	}
}

// entryOf returns the entry of a task, with the number of its newest attempt. The caller holds mu.
func (p *Places) entryOf(task *v1alpha1.Task) *entry {
	name := nameOf(task)
	e := p.tasks[name]
	if e == nil || e.uid != task.UID {
		p.forget(name)
		e = &entry{uid: task.UID, created: task.CreationTimestamp.Time}
		p.tasks[name] = e
	}
	if n := len(task.Status.Attempts); n > 0 {
		e.newest = max(e.newest, task.Status.Attempts[n-1].Number)
	}
	return e
}

// forget drops what is known of a task. The caller holds mu.
func (p *Places) forget(name types.NamespacedName) {
	delete(p.tasks, name)
	p.queue.Leave(name)
	p.queue.Free(name)
}

// Count returns how many tasks have a place, and how many wait.
func (p *Places) Count() (running, waiting int) {
	if p == nil {
		return 0, 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.Running(), p.queue.Waiting()
}

func nameOf(task *v1alpha1.Task) types.NamespacedName {
	return types.NamespacedName{Namespace: task.Namespace, Name: task.Name}
}

// isQueued reports whether the stored status has the task as one that waits for a place.
func isQueued(task *v1alpha1.Task) bool {
	c := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskSucceeded)
	return c != nil && c.Reason == v1alpha1.ReasonQueued && task.DeletionTimestamp == nil
}
