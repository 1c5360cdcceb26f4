package fairqueue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/internal/controller/fairqueue"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

func newQueue(t *testing.T) queue {
	q := fairqueue.New("", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Millisecond, time.Second))
	t.Cleanup(q.ShutDown)
	return q
}

func request(namespace string, n int) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(n)}}
}

// served takes n requests and marks each as done.
func served(q queue, n int) (names []string) {
	for range n {
		r, _ := q.Get()
		q.Done(r)
		names = append(names, r.String())
	}
	return names
}

func TestANamespaceWithFewRequestsDoesNotWaitForOneWithMany(t *testing.T) {
	g := gomega.NewWithT(t)
	q := newQueue(t)
	for n := range 4000 {
		q.Add(request("crowd", n))
	}
	q.Add(request("quiet", 0))
	q.Add(request("quiet", 1))
	q.Add(request("other", 0))
	g.Expect(q.Len()).To(gomega.Equal(4003))
	g.Expect(served(q, 7)).To(gomega.Equal([]string{
		"crowd/0", "quiet/0", "other/0", "crowd/1", "quiet/1", "crowd/2", "crowd/3",
	}))
	g.Expect(q.Len()).To(gomega.Equal(3996))
}

func TestARepeatedRequestWaitsBehindThoseOfItsNamespace(t *testing.T) {
	g := gomega.NewWithT(t)
	q := newQueue(t)
	q.Add(request("a", 0))
	q.Add(request("a", 1))
	first, _ := q.Get()
	q.Add(first) // while it is worked on
	q.Add(request("b", 0))
	q.Done(first)
	g.Expect(served(q, 3)).To(gomega.Equal([]string{"a/1", "b/0", "a/0"}))
	g.Expect(q.Len()).To(gomega.BeZero())
}

func TestARequestIsQueuedOnceAndKeepsItsPlace(t *testing.T) {
	g := gomega.NewWithT(t)
	q := newQueue(t)
	for range 3 {
		q.Add(request("a", 0))
		q.Add(request("a", 1))
	}
	g.Expect(q.Len()).To(gomega.Equal(2))
	g.Expect(served(q, 2)).To(gomega.Equal([]string{"a/0", "a/1"}))
}

func TestDelayedAndRetriedRequestsAreServed(t *testing.T) {
	g := gomega.NewWithT(t)
	q := newQueue(t)
	q.AddAfter(request("a", 0), time.Millisecond)
	g.Expect(served(q, 1)).To(gomega.Equal([]string{"a/0"}))
	q.AddRateLimited(request("b", 0))
	g.Expect(q.NumRequeues(request("b", 0))).To(gomega.Equal(1))
	g.Expect(served(q, 1)).To(gomega.Equal([]string{"b/0"}))
}
