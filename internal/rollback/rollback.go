// Package rollback notices that the state behind the Kubernetes API was put
// back to an older copy, as a restore of etcd does.
//
// Whoever watched the newer state cannot go on: the API server counts on from
// the older resource version, and a watch says nothing of what happens until
// the version is reached that it had seen before. So the package promises to
// end its process's work, with an error that says why. The next process lists
// everything anew.
//
// The witness is the lease of the manager that leads, which is renewed every
// few seconds and never goes back by itself. Its holder (Lock) notices when it
// renews it next, since its renewal conflicts with what was put back. All
// others (Watch) notice when they look at the lease next, even if another
// manager has taken it over meanwhile, for that one says in the lease what it
// took over. Watch compares resource versions, too. They need no manager, but
// prove less: what the API server writes by itself when it starts may overtake
// the version that was seen last.
//
// Two things cannot be noticed for certain: that a copy was put back which was
// made after the last renewal, and that one was put back which was made before
// there was the lease. Then it shows only if the API server has not yet
// overtaken the version that was seen last. And who sees nothing of the API
// server while two managers take the lease over, one after the other, may miss
// what the first of them found.
package rollback

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/clew-dev/clew/api/v1alpha1"
)

const (
	// every is how often a version is read while the API server answers, and
	// whileAway while it does not.
	every     = 2 * time.Second
	whileAway = 250 * time.Millisecond
	// patience is how long one answer may take.
	patience = 5 * time.Second
)

// Watch compares what the API server tells with what it told before. Neither
// Version nor Lease may be answered from a cache.
type Watch struct {
	// Version reads the newest resource version of one kind of object.
	Version func(context.Context) (string, error)
	// Lease reads the manager's lease; nil if there is none.
	Lease func(context.Context) (*coordinationv1.Lease, error)
	// Every and WhileAway are 2 s and 250 ms if 0.
	Every, WhileAway time.Duration
	Log              logr.Logger
}

// New returns a Watch that reads the versions of Checkpoints, and the lease of
// the managers of a namespace. With no namespace there is no lease.
func New(config *rest.Config, namespace string, log logr.Logger) (*Watch, error) {
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for the Kubernetes API: %w", err)
	}
	checkpoints := objects.Resource(v1alpha1.GroupVersion.WithResource("checkpoints"))
	version := func(ctx context.Context) (string, error) {
		list, err := checkpoints.List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return "", err
		}
		return list.ResourceVersion, nil
	}
	w := &Watch{Version: version, Log: log}
	if namespace == "" {
		return w, nil
	}
	client, err := coordinationv1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for the manager's lease: %w", err)
	}
	w.Lease = func(ctx context.Context) (*coordinationv1.Lease, error) {
		return client.Leases(namespace).Get(ctx, LeaseName, metav1.GetOptions{})
	}
	return w, nil
}

// NeedLeaderElection is false: one who waits for its turn has caches too.
func (w *Watch) NeedLeaderElection() bool { return false }

// Start returns nil when ctx ends, and an error when the state went back.
func (w *Watch) Start(ctx context.Context) error {
	var seen answer
	verbosity := 0
	for {
		pause := cmp.Or(w.Every, every)
		now, err := w.read(ctx)
		switch {
		case err == nil:
			verbosity = 0
		case ctx.Err() == nil:
			w.Log.V(verbosity).Info("could not see whether the Kubernetes API's state was put back; trying again", "error", err.Error())
			verbosity = 1 // what goes on is said once
		}
		if now.version == "" {
			pause = cmp.Or(w.WhileAway, whileAway)
		}
		if err := now.putBackSince(seen); err != nil {
			return err
		}
		seen = now.or(seen)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// answer is what the API server told; what it did not is empty.
type answer struct {
	version string
	lease   sight
}

// read returns what it could read, and an error unless that is all.
func (w *Watch) read(ctx context.Context) (now answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if now.version, err = w.Version(ctx); err != nil || w.Lease == nil {
		return now, err
	}
	lease, err := w.Lease(ctx)
	switch {
	case err == nil:
		now.lease = sightOf(lease)
	case !apierrors.IsNotFound(err): // if it is, no manager has led yet
		return now, fmt.Errorf("read the lease %s: %w", LeaseName, err)
	}
	return now, nil
}

// or fills what is empty with what an earlier answer said.
func (a answer) or(earlier answer) answer {
	a.version = cmp.Or(a.version, earlier.version)
	a.lease = cmp.Or(a.lease, earlier.lease)
	return a
}

func (a answer) putBackSince(seen answer) error {
	if wentBack(seen.version, a.version) {
		return putBack("the Kubernetes API is at resource version %s, and was at %s before", a.version, seen.version)
	}
	return a.lease.putBackSince(seen.lease)
}

// wentBack is false when one of the two is no number: such an API server gives
// nothing to compare.
func wentBack(seen, version string) bool {
	if seen == "" || version == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(version, seen)
	return err == nil && order < 0
}
