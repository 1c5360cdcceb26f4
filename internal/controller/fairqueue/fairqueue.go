// Package fairqueue is the controllers' work queue, shared fairly between
// namespaces.
//
// It promises that a request waits for at most one request of each other
// namespace for every request of its own namespace that is ahead of it, however
// many the others have queued. Within a namespace requests are served in order
// of arrival. Everything else (one entry per object, one worker
// per object at a time, delays, retries, metrics) is client-go's work queue.
package fairqueue

import (
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
