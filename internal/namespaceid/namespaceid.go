// Package namespaceid tells which namespace has a name: one that is made anew under an old name
// is another namespace, with a UID of its own.
//
// It promises that an answer is about the namespace that exists, and not about one that was there
// before: it reads from the API server, and not from a cache that may be behind. An answer is kept
// for less time than the API server's controller waits before it begins to remove a namespace, and
// none is kept about one that is being removed.
package namespaceid

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

const (
	// kept is how long an answer is kept, from the time of the request. A namespace exists for at
	// least five seconds (namespaceDeletionGracePeriod of kube-controller-manager) after its
	// deletion was requested.
	kept = 3 * time.Second
	// maxKept is how many answers are kept.
	maxKept = 4096
	// timeout bounds a request, whoever waits for the answer.
	timeout = 5 * time.Second
)

// ErrNone is returned if there is no namespace of the name.
var ErrNone = errors.New("there is no such namespace")

// Namespace identifies a namespace.
type Namespace struct {
	UID     string
	Created time.Time
}

// Reader reads namespaces from the API server. It is safe for concurrent use.
type Reader struct {
	client metadata.Interface
	clock  clock.PassiveClock
	known  *cache.LRUExpireCache
	flight singleflight.Group
}

// New returns a Reader with a client of its own. Its account must be allowed to get namespaces.
func New(config *rest.Config) (*Reader, error) {
	config = rest.CopyConfig(config)
	// The cache bounds the requests, and the API server's priority and fairness.
	config.QPS = -1
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for the Kubernetes API: %w", err)
	}
	return newReader(client, clock.RealClock{}), nil
}

func newReader(client metadata.Interface, clock clock.Clock) *Reader {
	return &Reader{client: client, clock: clock, known: cache.NewLRUExpireCacheWithClock(maxKept, clock)}
}

// Get returns the namespace of a name; ErrNone if there is none. After any other error it is not
// known which namespace it is.
func (r *Reader) Get(ctx context.Context, name string) (Namespace, error) {
	if known, ok := r.known.Get(name); ok {
		return known.(Namespace), nil
	}
	waiting := r.flight.DoChan(name, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		defer cancel()
		return r.read(ctx, name)
	})
	select {
	case got := <-waiting:
		found, _ := got.Val.(Namespace)
		return found, got.Err
	case <-ctx.Done():
		return Namespace{}, fmt.Errorf("read the namespace %s: %w", name, ctx.Err())
	}
}

// read asks the API server.
func (r *Reader) read(ctx context.Context, name string) (Namespace, error) {
	asked := r.clock.Now()
	object, err := r.client.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Namespace{}, fmt.Errorf("%w: %s", ErrNone, name)
	}
	if err != nil {
		return Namespace{}, fmt.Errorf("read the namespace %s: %w", name, err)
	}
	found := Namespace{UID: string(object.UID), Created: object.CreationTimestamp.Time}
	if left := kept - r.clock.Since(asked); left > 0 && object.DeletionTimestamp.IsZero() {
		r.known.Add(name, found, left)
	}
	return found, nil
}
