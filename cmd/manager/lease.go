package main

import (
	"cmp"
	"errors"
	"os"
	"time"

	"github.com/google/uuid"
	"k8s.io/client-go/rest"

	"github.com/clew-dev/clew/internal/rollback"
)

// How long the manager may lead. One that cannot renew its lease ends, and the next
// one lists everything anew: the last thing that an API server needs which a tenant
// floods, or which is being restarted. With the 10 s that are usual, that took no
// more than one slow moment; with these, it takes 40 s without one answer. Each try
// may take 20 s.
//
// What that costs is that another manager waits for 60 s, not 15, where this one's
// pod or node is lost. One that ends by itself gives the lease back; and the process
// that follows one which was killed, in the same pod, takes it over at once, see
// newLease. Agents work on meanwhile.
const (
	leaseDuration = 60 * time.Second
	renewDeadline = 40 * time.Second
	retryPeriod   = 2 * time.Second
)

// The environment variables that hold the pod's name and namespace.
const podEnv, namespaceEnv = "POD_NAME", "POD_NAMESPACE"

// leaseNamespace is where the lease is; "" without leader election.
func (o *options) leaseNamespace() string {
	if !o.leaderElect {
		return ""
	}
	return cmp.Or(o.leaderElectNamespace, os.Getenv(namespaceEnv))
}

// newLease returns what managers take turns by; nil if they do not. It is held in
// the name of the pod, in which there is never more than one manager: the kubelet
// starts a container again when the former one has ended.
func newLease(config *rest.Config, o *options) (*rollback.Lock, error) {
	if !o.leaderElect {
		return nil, nil
	}
	if o.leaseNamespace() == "" {
		return nil, errors.New("--leader-elect-namespace is required where " + namespaceEnv + " is not set: name the namespace of the lease")
	}
	holder := cmp.Or(os.Getenv(podEnv), uuid.NewString())
	return rollback.NewLock(config, o.leaseNamespace(), holder, renewDeadline/2)
}
