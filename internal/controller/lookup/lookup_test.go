package lookup_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/internal/controller/fairqueue"
	"github.com/clew-dev/clew/internal/controller/lookup"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: name}}
}

// TestAWorkerFindsWhatAnEventConcerns: the event itself is one request, whatever it concerns.
func TestAWorkerFindsWhatAnEventConcerns(t *testing.T) {
	g := gomega.NewWithT(t)
	var asked, served []string
	lookups := lookup.New(map[string]lookup.Find{"task": func(_ context.Context, namespace, name string) ([]reconcile.Request, error) {
		asked = append(asked, namespace+" "+name)
		if name == "broken" {
			return nil, errors.New("the cache does not answer")
		}
		return []reconcile.Request{request("one"), request("two"), request("one")}, nil
	}})
	queue := lookups.Queue(fairqueue.New)("", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Millisecond, time.Second))
	t.Cleanup(queue.ShutDown)
	worker := lookups.Serve(reconcile.Func(func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
		served = append(served, r.Name)
		return reconcile.Result{}, nil
	}))
	work := func() error {
		r, _ := queue.Get()
		defer queue.Done(r)
		_, err := worker.Reconcile(t.Context(), r)
		return err
	}

	lookup.Handler("task", client.Object.GetName).Create(t.Context(), event.CreateEvent{Object: builders.Task("a", builders.InNamespace("team"))}, queue)
	lookup.Handler("task", func(client.Object) string { return "" }).Create(t.Context(), event.CreateEvent{Object: builders.Task("b")}, queue)
	g.Expect(queue.Len()).To(gomega.Equal(1))
	g.Expect(work()).To(gomega.Succeed())
	g.Expect(asked).To(gomega.Equal([]string{"team a"}))
	g.Expect(served).To(gomega.BeEmpty())
	g.Expect(work()).To(gomega.Succeed())
	g.Expect(work()).To(gomega.Succeed())
	g.Expect(served).To(gomega.Equal([]string{"one", "two"}))
	g.Expect(queue.Len()).To(gomega.BeZero())

	queue.Add(lookup.Request("task", "team", "broken"))
	g.Expect(work()).To(gomega.MatchError(gomega.ContainSubstring("find what the task broken concerns")), "it is tried again")
	queue.Add(lookup.Request("call", "team", "1"))
	g.Expect(work()).To(gomega.Succeed())
	g.Expect(served).To(gomega.HaveLen(3), "a request of another kind is none of the lookups")
}
