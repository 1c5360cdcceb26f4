// Package lookup has a controller's workers find out which objects an event concerns.
//
// It promises that an event costs the goroutine that delivers it, which all tenants share, one entry in
// the controller's queue, however many objects it concerns; the workers that look for those are shared
// fairly. Whatever changes while they look is looked at again.
package lookup

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/internal/controller/fairqueue"
	"github.com/clew-dev/clew/internal/controller/requeue"
)

// Find returns requests for the objects that something of a name concerns.
type Find func(ctx context.Context, namespace, name string) ([]reconcile.Request, error)

// Lookups are the kinds of lookups of one controller, by their names.
type Lookups struct {
	finds map[string]Find

	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
}

// New returns the lookups of a controller. Its queue has to be made by Queue, and its requests served by
// Serve.
func New(finds map[string]Find) *Lookups { return &Lookups{finds: finds} }

// Request returns the request for a lookup. No object has a name like this.
func Request(kind, namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: kind + "/" + name}}
}

// Handler requests a lookup for each event of an object for which nameOf returns a name.
func Handler(kind string, nameOf func(client.Object) string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []reconcile.Request {
		name := nameOf(object)
		if name == "" {
			return nil
		}
		return []reconcile.Request{Request(kind, object.GetNamespace(), name)}
	})
}

// Queue makes the controller's queue.
func (l *Lookups) Queue(of fairqueue.NewQueue) fairqueue.NewQueue {
	return func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.queue = of(name, limiter)
		return l.queue
	}
}

// Serve looks up what a request asks for, and queues what it finds; all other requests are passed on.
func (l *Lookups) Serve(others reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		kind, name, isLookup := strings.Cut(request.Name, "/")
		find := l.finds[kind]
		if !isLookup || find == nil {
			return others.Reconcile(ctx, request)
		}
		found, err := find(ctx, request.Namespace, name)
		if err != nil {
			return requeue.Result(logf.FromContext(ctx), fmt.Errorf("find what the %s %s concerns: %w", kind, name, err))
		}
		l.mu.Lock()
		queue := l.queue
		l.mu.Unlock()
		for _, r := range found {
			queue.Add(r)
		}
		return reconcile.Result{}, nil
	})
}
