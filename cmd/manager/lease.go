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

// The periods of leader election. A manager that cannot renew its lease ends, and the
// next one lists all objects again: the last thing that an API server needs while a
// tenant floods it or it is being restarted. With the usual 10 s one slow moment is
// enough for that; with these periods it takes 40 s without any response. Each try may
// take 20 s.
//
// The cost is that another manager waits for 60 s instead of 15 when this one's pod or
// node is lost. A manager that ends by itself releases the lease; and the process that
// follows a killed one in the same pod takes it over at once, see newLease. Agents
// continue in the meantime.
const (
	leaseDuration = 60 * time.Second
	renewDeadline = 40 * time.Second
	retryPeriod   = 2 * time.Second
)

// The environment variables with the pod's name and namespace.
const podEnv, namespaceEnv = "POD_NAME", "POD_NAMESPACE"

// leaseNamespace returns the namespace of the lease; "" without leader election.
func (o *options) leaseNamespace() string {
	if !o.leaderElect {
		return ""
	}
	return cmp.Or(o.leaderElectNamespace, os.Getenv(namespaceEnv))
}

// newLease returns the lock of the leader election; nil without one. Its holder is the pod,
// in which there is never more than one manager: the kubelet restarts a container only
// after the former one has ended.
func newLease(config *rest.Config, o *options) (*rollback.Lock, error) {
	if !o.leaderElect {
		return nil, nil
	}
	if o.leaseNamespace() == "" {
		return nil, errors.New("--leader-elect-namespace is required when " + namespaceEnv + " is not set: name the namespace of the lease")
	}
	holder := cmp.Or(os.Getenv(podEnv), uuid.NewString())
	return rollback.NewLock(config, o.leaseNamespace(), holder, renewDeadline/2)
}
