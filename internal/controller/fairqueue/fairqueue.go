// Package fairqueue is the controllers' work queue, shared fairly between
// namespaces.
//
// It promises that a request waits for at most one request of each other
// namespace for every request of its own namespace that is ahead of it, however
// many the others have queued. Sharing and Serial promise as well that requests of one namespace
// that take long leave workers to the others. Within a namespace requests are served in order
// of arrival. Everything else (one entry per object, one worker
// per object at a time, delays, retries, metrics) is client-go's work queue.
package fairqueue

import (
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// New returns the queue of the named controller; it is meant for
// controller.Options.NewQueue.
func New(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	ready := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[reconcile.Request]{Name: name, Queue: newRotation()})
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{
		Name:          name,
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[reconcile.Request]{Name: name, Queue: ready}),
	})
}

// NewQueue makes the queue of a controller, as controller.Options.NewQueue does.
type NewQueue = func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request]

// Sharing is New for a controller with so many workers, of which a quarter, rounded down, is never
// given to one namespace: however long its requests take, those of another one find a worker that is
// free.
func Sharing(workers int) NewQueue { return within(workers - workers/4) }

// Serial is New with at most one request of each namespace being served at a time, however many
// workers there are.
func Serial() NewQueue { return within(1) }

// within is New with at most so many requests of each namespace being served at a time.
func within(most int) NewQueue {
	return func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
		return &bounded{
			TypedRateLimitingInterface: New(name, limiter), most: most,
			serving: map[string]int{}, parked: map[string]workqueue.Queue[reconcile.Request]{},
		}
	}
}

// bounded is a queue that parks the requests of a namespace of which as many are being served as may
// be. The queue below regards those as being served, and thus keeps one entry of each.
type bounded struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	most int

	mu      sync.Mutex
	serving map[string]int
	parked  map[string]workqueue.Queue[reconcile.Request]
}

// Get implements workqueue.TypedInterface.
func (q *bounded) Get() (request reconcile.Request, shutdown bool) {
	for {
		request, shutdown = q.TypedRateLimitingInterface.Get()
		if shutdown || q.admit(request) {
			return request, shutdown
		}
	}
}

// admit reports whether the request may be served now, and parks it otherwise.
func (q *bounded) admit(request reconcile.Request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.serving[request.Namespace] < q.most {
		q.serving[request.Namespace]++
		return true
	}
	if q.parked[request.Namespace] == nil {
		q.parked[request.Namespace] = workqueue.DefaultQueue[reconcile.Request]()
	}
	q.parked[request.Namespace].Push(request)
	return false
}

// Done implements workqueue.TypedInterface. It queues the next parked request of the namespace.
func (q *bounded) Done(request reconcile.Request) {
	q.TypedRateLimitingInterface.Done(request)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.serving[request.Namespace]--; q.serving[request.Namespace] == 0 {
		delete(q.serving, request.Namespace)
	}
	parked := q.parked[request.Namespace]
	if parked == nil {
		return
	}
	next := parked.Pop()
	if parked.Len() == 0 {
		delete(q.parked, request.Namespace)
	}
	// In this order it is queued only once it counts as served no longer.
	q.Add(next)
	q.TypedRateLimitingInterface.Done(next)
}

// rotation serves namespaces in turn, one request each. client-go's queue calls
// it under its own lock, and never pushes a request that is still in it.
type rotation struct {
	turns   workqueue.Queue[string] // namespaces with requests, the next one first
	waiting map[string]workqueue.Queue[reconcile.Request]
	count   int
}

func newRotation() *rotation {
	return &rotation{turns: workqueue.DefaultQueue[string](), waiting: map[string]workqueue.Queue[reconcile.Request]{}}
}

// Touch implements workqueue.Queue: a request that is queued keeps its place.
func (r *rotation) Touch(reconcile.Request) {}

// Push implements workqueue.Queue.
func (r *rotation) Push(request reconcile.Request) {
	own := r.waiting[request.Namespace]
	if own == nil {
		own = workqueue.DefaultQueue[reconcile.Request]()
		r.waiting[request.Namespace] = own
		r.turns.Push(request.Namespace)
	}
	own.Push(request)
	r.count++
}

// Len implements workqueue.Queue.
func (r *rotation) Len() int { return r.count }

// Pop implements workqueue.Queue. The namespace served goes to the end of the
// line if it has more requests, and is forgotten if it has none.
func (r *rotation) Pop() reconcile.Request {
	namespace := r.turns.Pop()
	own := r.waiting[namespace]
	request := own.Pop()
	r.count--
	if own.Len() > 0 {
		r.turns.Push(namespace)
	} else {
		delete(r.waiting, namespace)
	}
	return request
}
