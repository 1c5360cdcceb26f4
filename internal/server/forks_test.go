package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
)

// forkPages is a cluster in which each namespace has a Fork on each of two pages, and there is no Task.
// It counts the lists.
type forkPages struct {
	dynamic.NamespaceableResourceInterface
	lists int
	fails []error // of requests for the second page, in order
}

func (p *forkPages) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return p
}

func (p *forkPages) Namespace(string) dynamic.ResourceInterface { return p }

func (p *forkPages) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: "clew.dev", Resource: "tasks"}, name)
}

func (p *forkPages) List(_ context.Context, options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	list, name := &unstructured.UnstructuredList{}, "first"
	if options.Continue == "" {
		p.lists++
		list.SetContinue("more")
	} else {
		name = "second"
		if len(p.fails) > 0 {
			err := p.fails[0]
			p.fails = p.fails[1:]
			return nil, err
		}
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&clewv1alpha1.Fork{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       clewv1alpha1.ForkSpec{Adopt: clewv1alpha1.AdoptLatest, Variants: []clewv1alpha1.ForkVariant{{Name: name}, {Name: name + "-b"}}},
	})
	list.Items = []unstructured.Unstructured{{Object: object}}
	return list, err
}

// wantAwaited checks which of the names a Fork is yet to make.
func wantAwaited(t *testing.T, a adopters, namespace string) {
	t.Helper()
	for name, want := range map[string]bool{"first": true, "second": true, "first-b": true, "none": false} {
		got, err := a.has(t.Context(), namespace, name)
		if got != want || err != nil {
			t.Errorf("%s is awaited: %v, %v; want %v", name, got, err, want)
		}
	}
}

func TestTheForksOfANamespaceAreListedOnceForAllItsHistories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, cluster := gomega.NewWithT(t), &forkPages{}
		a := newAdopters(cluster)
		for _, namespace := range []string{"a", "b", "a"} {
			wantAwaited(t, a, namespace)
		}
		g.Expect(cluster.lists).To(gomega.Equal(2))
		advance(forksCount)
		wantAwaited(t, a, "a")
		g.Expect(cluster.lists).To(gomega.Equal(3), "a Fork may have been made meanwhile")
		g.Expect(a.forks.lists).To(gomega.HaveLen(1), "nobody has asked for the others since")
	})
}

func TestAListOfForksThatHasExpiredStartsOver(t *testing.T) {
	g, cluster := gomega.NewWithT(t), &forkPages{fails: []error{apierrors.NewResourceExpired("compacted")}}
	wantAwaited(t, newAdopters(cluster), "a")
	g.Expect(cluster.lists).To(gomega.Equal(2))
}

func TestForksThatCannotBeListedAreTriedAgainLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, cluster := gomega.NewWithT(t), &forkPages{fails: []error{errors.New("the API server is slow")}}
		a := newAdopters(cluster)
		for range 2 {
			_, err := a.has(t.Context(), "a", "none")
			g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring("slow")))
		}
		g.Expect(cluster.lists).To(gomega.Equal(1), "each of its histories would wait as long")
		advance(forksCount)
		wantAwaited(t, a, "a")

		cluster.fails = []error{apierrors.NewResourceExpired("compacted"), apierrors.NewResourceExpired("compacted again")}
		advance(forksCount)
		_, err := a.has(t.Context(), "a", "none")
		g.Expect(err).To(gomega.Satisfy(func(err error) bool { return strings.Contains(err.Error(), "compacted again") }))
	})
}
