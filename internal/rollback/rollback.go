// Package rollback detects that the state behind the Kubernetes API was restored from an
// older copy, as a restore of etcd does.
//
// A process that watched the newer state cannot continue: the API server counts on from
// the older resource version, and a watch reports no changes until the resource version
// exceeds the one it had seen before. So the package promises to make its process exit,
// with an error that says why. The next process lists everything anew.
//
// The evidence is the lease of the leading manager, which is renewed every few seconds
// and never decreases on its own. Its holder (Lock) detects a rollback at its next
// renewal, which conflicts with the restored lease. All others (Watch) detect it when
// they next read the lease, even if another manager has taken it over meanwhile, since
// that one records in the lease the state in which it took it over. Watch also compares
// resource versions. Those need no manager, but prove less: what the API server itself
// writes when it starts may push the version past the last one seen.
//
// Two rollbacks cannot be detected reliably: to a copy made after the last renewal, and
// to one made before the lease existed. They are noticed only if the API server has not
// yet passed the last version seen. And a process that cannot reach the API server while
// two managers take the lease over, one after the other, may miss the state that the
// first of them found.
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
	// interval is the time between two reads while the API server answers, and
	// retryInterval while it does not.
	interval      = 2 * time.Second
	retryInterval = 250 * time.Millisecond
	// patience is how long one read may take.
	patience = 5 * time.Second
)

// Watch compares the API server's answers with its earlier ones. Neither Version nor Lease
// may read from a cache.
type Watch struct {
	// Version reads the newest resource version of one kind of object.
	Version func(context.Context) (string, error)
	// Lease reads the manager's lease; nil to compare resource versions only.
	Lease func(context.Context) (*coordinationv1.Lease, error)
	// Interval is the time between two reads while the API server answers, 2 s if 0, and
	// RetryInterval while it does not, 250 ms if 0.
	Interval, RetryInterval time.Duration
	Log                     logr.Logger
}

// New returns a Watch that reads the resource version of Checkpoints, and the lease of the
// managers in a namespace. With an empty namespace it reads no lease.
func New(config *rest.Config, namespace string, log logr.Logger) (*Watch, error) {
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for the Kubernetes API: %w", err)
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
		return nil, fmt.Errorf("create a client for the manager's lease: %w", err)
	}
	w.Lease = func(ctx context.Context) (*coordinationv1.Lease, error) {
		return client.Leases(namespace).Get(ctx, LeaseName, metav1.GetOptions{})
	}
	return w, nil
}

// NeedLeaderElection returns false: a manager that waits for the lease has caches too.
func (w *Watch) NeedLeaderElection() bool { return false }

// Start returns nil when ctx ends, and an error when the state was rolled back.
func (w *Watch) Start(ctx context.Context) error {
	var seen answer
	verbosity := 0
	for {
		pause := cmp.Or(w.Interval, interval)
		now, err := w.read(ctx)
		switch {
		case err == nil:
			verbosity = 0
		case ctx.Err() == nil:
			w.Log.V(verbosity).Info("cannot check whether the Kubernetes API's state was rolled back; retrying", "error", err.Error())
			verbosity = 1 // log a lasting failure only once
		}
		if now.version == "" {
			pause = cmp.Or(w.RetryInterval, retryInterval)
		}
		if err := now.rolledBackSince(seen); err != nil {
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

// answer is what the API server returned; fields that could not be read are zero.
type answer struct {
	version string
	lease   observation
}

// read returns what could be read, and an error unless that is everything.
func (w *Watch) read(ctx context.Context) (now answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if now.version, err = w.Version(ctx); err != nil || w.Lease == nil {
		return now, err
	}
	lease, err := w.Lease(ctx)
	switch {
	case err == nil:
		now.lease = observe(lease)
	case !apierrors.IsNotFound(err): // without a lease, no manager has led yet
		return now, fmt.Errorf("read the lease %s: %w", LeaseName, err)
	}
	return now, nil
}

// or returns the answer with its zero fields taken from an earlier one.
func (a answer) or(earlier answer) answer {
	a.version = cmp.Or(a.version, earlier.version)
	a.lease = cmp.Or(a.lease, earlier.lease)
	return a
}

// rolledBackSince returns an error if the state was rolled back since an earlier answer.
func (a answer) rolledBackSince(seen answer) error {
	if isOlder(seen.version, a.version) {
		return rolledBack("the Kubernetes API is at resource version %s, but was already at %s", a.version, seen.version)
	}
	return a.lease.rolledBackSince(seen.lease)
}

// isOlder reports whether version is older than seen. It is false if one of them is not a
// number, since such an API server's versions cannot be compared.
func isOlder(seen, version string) bool {
	if seen == "" || version == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(version, seen)
	return err == nil && order < 0
}
