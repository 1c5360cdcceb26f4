package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
)

const (
	// forksOfPage is the number of Forks read per request: each may be as large as the API server's
	// limit for an object.
	forksOfPage = 8
	// forksCount is how long the Forks of a namespace count as they were listed. A Fork that is made
	// meanwhile counts once it has made its Task, which is read each time; before that it may find a
	// history that is then deleted, as may one that is made during the list.
	forksCount = time.Minute
	// forksTimeout bounds one list of a namespace's Forks.
	forksTimeout = 2 * time.Minute
)

// awaitingForks are the names of Tasks that Forks are yet to make and which adopt. Whoever may make Forks
// can make many large ones, and there may be many histories of their namespace to delete: its Forks are
// listed once for all that are asked for within a minute.
type awaitingForks struct {
	client dynamic.Interface

	mu    sync.Mutex
	lists map[string]forkList // by namespace
}

// forkList is what the Forks of a namespace were, or why they could not be listed.
type forkList struct {
	names map[string]bool
	err   error
	at    time.Time
}

// has reports whether a Fork of a namespace is yet to make a Task of a name which adopts.
func (f *awaitingForks) has(ctx context.Context, namespace, name string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for of, list := range f.lists {
		if time.Since(list.at) >= forksCount {
			delete(f.lists, of)
		}
	}
	list, known := f.lists[namespace]
	if !known {
		list.names, list.err = f.list(ctx, namespace)
		if ctx.Err() != nil {
			return false, list.err
		}
		list.at = time.Now()
		f.lists[namespace] = list
	}
	return list.names[name], list.err
}

// list lists the Forks of a namespace, and returns the names.
func (f *awaitingForks) list(ctx context.Context, namespace string) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, forksTimeout)
	defer cancel()
	forks := f.client.Resource(clewv1alpha1.GroupVersion.WithResource("forks")).Namespace(namespace)
	names, options, again := map[string]bool{}, metav1.ListOptions{Limit: forksOfPage}, true
	for {
		page, err := forks.List(ctx, options)
		if apierrors.IsResourceExpired(err) && again {
			options.Continue, again = "", false // start over, once: the names that were found stay
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list the Forks of the namespace %s: %w", namespace, err)
		}
		for i := range page.Items {
			fork := &clewv1alpha1.Fork{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(page.Items[i].Object, fork); err != nil {
				return nil, fmt.Errorf("read the Fork %s/%s: %w", namespace, page.Items[i].GetName(), err)
			}
			for _, name := range plan.WillAdopt(fork) {
				names[name] = true
			}
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return names, nil
		}
	}
}
