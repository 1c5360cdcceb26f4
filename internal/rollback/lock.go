package rollback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Lock is the lock of the managers' leader election, with a lease. It compares each
// read of the lease with what it has read and written before. Once the lease was rolled
// back, Lock neither reads nor writes it any more, so that others can notice too, and
// Start returns an error.
//
// As with other locks of client-go, only one goroutine at a time may use the methods of
// resourcelock.Interface.
type Lock struct {
	leases            coordinationv1client.LeaseInterface
	namespace, holder string
	process           string
	lease             *coordinationv1.Lease // as last read or written
	seen              observation
	rolledBack        error
	end               chan error
}

var _ resourcelock.Interface = (*Lock)(nil)

// NewLock returns the lock of a namespace's managers, with holder as the name of this one.
// No request takes longer than patience.
func NewLock(config *rest.Config, namespace, holder string, patience time.Duration) (*Lock, error) {
	config = rest.AddUserAgent(rest.CopyConfig(config), "leader-election")
	config.Timeout = patience
	client, err := coordinationv1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for the lease: %w", err)
	}
	return &Lock{
		leases: client.Leases(namespace), namespace: namespace, holder: holder,
		process: uuid.NewString(), end: make(chan error, 1),
	}, nil
}

// NeedLeaderElection returns false: Start watches over the election itself.
func (l *Lock) NeedLeaderElection() bool { return false }

// Start returns nil when ctx ends, and an error when the lease was rolled back.
func (l *Lock) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-l.end:
		return err
	}
}

// Get reads the lease. It fails if the lease was rolled back.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if l.rolledBack != nil {
		return nil, nil, l.rolledBack
	}
	lease, err := l.leases.Get(ctx, LeaseName, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	if l.rolledBack = observe(lease).rolledBackSince(l.seen); l.rolledBack != nil {
		l.end <- l.rolledBack
		return nil, nil, l.rolledBack
	}
	l.keep(lease)
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	text, err := json.Marshal(*record)
	return record, text, err
}

// Create creates the lease.
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if l.rolledBack != nil {
		return l.rolledBack
	}
	lease := &coordinationv1.Lease{Spec: resourcelock.LeaderElectionRecordToLeaseSpec(&record)}
	lease.Name, lease.Namespace = LeaseName, l.namespace
	lease, err := l.leases.Create(ctx, lease, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	l.keep(lease)
	return nil
}

// Update updates the lease from the state in which it was last read or written. It fails if
// another process has written it since.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if l.rolledBack != nil {
		return l.rolledBack
	}
	if l.lease == nil {
		return errors.New("the lease must be read before it can be written")
	}
	lease := l.lease.DeepCopy()
	if err := recordTerm(l.process, lease); err != nil {
		return err
	}
	lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	lease.Spec.RenewTime.Time = l.seen.at.next(*lease.Spec.LeaseTransitions, lease.Spec.RenewTime.Time)
	lease, err := l.leases.Update(ctx, lease, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	l.keep(lease)
	return nil
}

// keep records the lease as last read or written.
func (l *Lock) keep(lease *coordinationv1.Lease) { l.lease, l.seen = lease, observe(lease) }

// RecordEvent does nothing: the leader is named in the lease and in the log.
func (l *Lock) RecordEvent(string) {}

// Identity returns the name of this process in the lease.
func (l *Lock) Identity() string { return l.holder }

// Describe returns the name of the lease, for logs.
func (l *Lock) Describe() string { return l.namespace + "/" + LeaseName }
