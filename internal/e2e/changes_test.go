//go:build e2e

package e2e

import (
	"context"
	"reflect"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// changes tells those who wait that an object of a namespace has changed. It keeps no object:
// who waits reads from the API server itself, so that nothing that a spec sees is older than
// what it wrote before.
type changes struct {
	mu   sync.Mutex
	next chan struct{} // closed by the next change
}

const (
	// unseen is how long a wait goes without reading again if no change is told, in case a watch
	// has missed one.
	unseen = time.Second
	// between is the time between two questions about what changes untold and is answered by
	// Postgres: the history.
	between = 250 * time.Millisecond
)

// watchChanges follows the objects of the world's namespace until the spec ends.
func (w *world) watchChanges(ctx context.Context) {
	GinkgoHelper()
	w.changes = &changes{next: make(chan struct{})}
	kinds, err := metadata.NewForConfig(w.config)
	Expect(err).NotTo(HaveOccurred())
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	DeferCleanup(stop)
	for _, kind := range []schema.GroupVersionResource{
		clewv1.GroupVersion.WithResource("tasks"), clewv1.GroupVersion.WithResource("checkpoints"),
		clewv1.GroupVersion.WithResource("forks"), {Version: "v1", Resource: "pods"},
	} {
		objects := kinds.Resource(kind).Namespace(w.namespace)
		from := &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return objects.List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				return objects.Watch(ctx, options)
			},
		}
		go cache.NewReflector(from, &metav1.PartialObjectMetadata{}, w.changes, 0).RunWithContext(ctx)
	}
}

// happened tells all who wait that something has changed.
func (c *changes) happened() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.next)
	c.next = make(chan struct{})
	return nil
}

// upcoming returns a channel that the next change closes.
func (c *changes) upcoming() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next
}

// A reflector takes changes for the place where it keeps what it is told.
var _ cache.ReflectorStore = (*changes)(nil)

func (c *changes) Add(any) error               { return c.happened() }
func (c *changes) Update(any) error            { return c.happened() }
func (c *changes) Delete(any) error            { return c.happened() }
func (c *changes) Replace([]any, string) error { return c.happened() }
func (c *changes) Resync() error               { return nil }

// eventually is Gomega's Eventually for what tasks, checkpoints, forks and pods of the world's
// namespace tell. It calls f, which may be any function that Eventually takes, at once, and
// after that only when one of them has changed, or a second is over. Everything else, such as the
// history, files and processes, changes untold: for that there is Eventually.
func (w *world) eventually(ctx context.Context, f any) AsyncAssertion {
	return Eventually(ctx, w.uponChange(ctx, f))
}

// uponChange returns a function like f whose calls, but for the first, wait for a change since
// the call before. A world whose changes nobody watches gets f itself.
func (w *world) uponChange(ctx context.Context, f any) any {
	if w.changes == nil {
		return f
	}
	var next <-chan struct{}
	call := reflect.ValueOf(f)
	return reflect.MakeFunc(call.Type(), func(args []reflect.Value) []reflect.Value {
		if next != nil {
			awaitChange(ctx, next)
		}
		next = w.changes.upcoming()
		return call.Call(args)
	}).Interface()
}

// awaitChange waits for a change, or for so long that it may have been missed.
func awaitChange(ctx context.Context, next <-chan struct{}) {
	missed := time.NewTimer(unseen)
	defer missed.Stop()
	select {
	case <-next:
	case <-missed.C:
	case <-ctx.Done():
	}
}
