package fairqueue_test

import (
	"fmt"
	"sync"
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

func TestANamespaceLeavesWorkersToOthersHoweverLongItsRequestsTake(t *testing.T) {
	for workers, most := range map[int]int{1: 1, 2: 2, 4: 3, 8: 6, 12: 9} {
		g := gomega.NewWithT(t)
		q := fairqueue.Sharing(workers)("", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Millisecond, time.Second))
		for n := range 1000 {
			q.Add(request("crowd", n))
		}
		var serving []reconcile.Request
		for range most {
			r, _ := q.Get()
			serving = append(serving, r)
		}
		if workers > most {
			q.Add(request("quiet", 0))
			r, _ := q.Get()
			g.Expect(r).To(gomega.Equal(request("quiet", 0)), "none of the crowd's requests has ended")
			q.Done(r)
		}
		next := make(chan reconcile.Request)
		go func() {
			r, _ := q.Get()
			next <- r
		}()
		q.AddRateLimited(serving[0]) // it failed, and is tried again behind the others
		q.Done(serving[0])
		g.Eventually(next).Should(gomega.Receive(gomega.HaveField("Namespace", "crowd")))
		q.ShutDown()
	}
}

func TestASerialQueueServesOneOfEachNamespaceAtATime(t *testing.T) {
	g := gomega.NewWithT(t)
	q := fairqueue.Serial()("", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Millisecond, time.Second))
	t.Cleanup(q.ShutDown)
	for n := range 3 {
		q.Add(request("a", n))
	}
	first, _ := q.Get()
	g.Expect(first).To(gomega.Equal(request("a", 0)))
	q.Add(request("b", 0))
	second, _ := q.Get()
	g.Expect(second).To(gomega.Equal(request("b", 0)), "what is next of a namespace that is not served")
	q.Add(request("a", 1)) // it waits already
	q.Add(first)           // while it is worked on
	q.Done(second)
	q.Add(request("c", 0))
	third, _ := q.Get()
	g.Expect(third).To(gomega.Equal(request("c", 0)))
	q.Done(first)
	got := served(q, 3)
	g.Expect(got).To(gomega.ConsistOf("a/0", "a/1", "a/2"), "each once")
	q.Done(third)
	g.Expect(q.Len()).To(gomega.BeZero())
}

// TestASerialQueueLosesNoRequest: each is served once after it was last added, whatever workers
// do, and never two of one namespace at a time.
func TestASerialQueueLosesNoRequest(t *testing.T) {
	g := gomega.NewWithT(t)
	q := fairqueue.Serial()("", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Millisecond, time.Second))
	const namespaces, each, workers = 5, 200, 8
	var mu sync.Mutex
	serving, times := map[string]int{}, map[string]int{}
	var done sync.WaitGroup
	for range workers {
		done.Go(func() {
			for r, shutdown := q.Get(); !shutdown; r, shutdown = q.Get() {
				mu.Lock()
				if serving[r.Namespace]++; serving[r.Namespace] > 1 {
					t.Errorf("%d requests of %s are served at a time", serving[r.Namespace], r.Namespace)
				}
				again := times[r.String()] == 0
				mu.Unlock()
				if again {
					q.Add(r)
				}
				mu.Lock()
				times[r.String()]++
				serving[r.Namespace]--
				mu.Unlock()
				q.Done(r)
			}
		})
	}
	for n := range each {
		for i := range namespaces {
			q.Add(request(fmt.Sprintf("ns-%d", i), n))
		}
	}
	g.Eventually(func() (twice int) {
		mu.Lock()
		defer mu.Unlock()
		for _, n := range times {
			if n >= 2 {
				twice++
			}
		}
		return twice
	}).WithTimeout(time.Minute).Should(gomega.Equal(namespaces * each))
	q.ShutDown()
	done.Wait()
}
