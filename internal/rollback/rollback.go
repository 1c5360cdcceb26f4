// Package rollback notices that the state behind the Kubernetes API was put
// back to an older copy, as a restore of etcd does.
//
// Whoever watched the newer state cannot go on: the API server counts on from
// the older resource version, and a watch says nothing of what happens until
// the version is reached that it had seen before. So the package promises to
// end its process's work, with an error that says why. The next process lists
// everything anew. It notices as soon as the API server can be reached again,
// since a restore stops it for a moment.
package rollback

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/clew-dev/clew/api/v1alpha1"
)

const (
	// every is how often a version is read while the API server answers, and
	// whileAway while it does not.
	every     = 5 * time.Second
	whileAway = 250 * time.Millisecond
	// patience is how long one answer may take.
	patience = 5 * time.Second
)

// Watch compares the resource versions that the API server tells.
type Watch struct {
	// Version reads the newest resource version of one kind of object. It must
	// not be answered from a cache.
	Version func(context.Context) (string, error)
	// Every and WhileAway are 5 s and 250 ms if 0.
	Every, WhileAway time.Duration
	Log              logr.Logger
}

// New returns a Watch that reads the versions of Checkpoints.
func New(config *rest.Config, log logr.Logger) (*Watch, error) {
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
	return &Watch{Version: version, Log: log}, nil
}

// NeedLeaderElection is false: one who waits for its turn has caches too.
func (w *Watch) NeedLeaderElection() bool { return false }

// Start returns nil when ctx ends, and an error when the state went back.
func (w *Watch) Start(ctx context.Context) error {
	seen := ""
	for {
		pause := cmp.Or(w.Every, every)
		version, err := w.read(ctx)
		switch {
		case err != nil:
			pause = cmp.Or(w.WhileAway, whileAway)
		case wentBack(seen, version):
			return fmt.Errorf("the Kubernetes API is at resource version %s and was at %s before: its state was put back, and what this process knows of it is of no use; the next process begins anew", version, seen)
		default:
			seen = version
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (w *Watch) read(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	version, err := w.Version(ctx)
	if err != nil && ctx.Err() == nil {
		w.Log.V(1).Info("Could not read a resource version.", "error", err.Error())
	}
	return version, err
}

// wentBack is false when one of the two is no number: such an API server gives
// nothing to compare.
func wentBack(seen, version string) bool {
	if seen == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(version, seen)
	return err == nil && order < 0
}
