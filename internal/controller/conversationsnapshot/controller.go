// Package conversationsnapshot is the controller of ConversationSnapshots: it
// resolves the position that each one names, once, and verifies from time to
// time that the messages up to that position are unchanged.
//
// A snapshot is a pointer into the history store. A snapshot applied by a person
// names a checkpoint, a position, or nothing, for the newest position; one
// created by the manager names, in a label, an automatic snapshot recorded by the
// store. Once it is resolved, only its condition Intact changes.
package conversationsnapshot

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/fairqueue"
	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/history"
)

// Store is the part of the history store that this controller needs. Its errors wrap
// those of package history.
type Store interface {
	// Snapshot resolves a checkpoint's position, a position, or the newest one, and
	// verifies the digest of the messages up to it.
	Snapshot(ctx context.Context, task history.Key, query history.SnapshotQuery) (history.Snapshot, error)
	// SnapshotsAfter lists automatic snapshots after a number, in order.
	SnapshotsAfter(ctx context.Context, taskUID string, after int64, limit int) ([]history.Snapshot, error)
}

const (
	// retryAfter is the pause before a snapshot that cannot be resolved yet is tried again.
	retryAfter = 10 * time.Second
	// retryDamagedAfter is the pause before one whose messages are damaged is tried again.
	retryDamagedAfter = time.Hour
	// verifyEvery is how often a resolved snapshot is verified again. The store reads all
	// messages up to it for that.
	verifyEvery = 7 * 24 * time.Hour
)

// Reconciler is the controller of ConversationSnapshots.
type Reconciler struct {
	// Client reads from the cache and writes. Required.
	Client client.Client
	// Store is the history store. Required.
	Store Store
	// Clock is the source of the time. Required.
	Clock clock.PassiveClock
	// VerifyEvery is how often a resolved snapshot is verified again; a week if 0.
	VerifyEvery time.Duration
	// Turn is how long the messages of a snapshot may be read at a time, before it was too short for
	// it; minTurn if 0.
	Turn time.Duration

	mu sync.Mutex
	// due is when each snapshot is verified next, by UID.
	due map[types.UID]time.Time
	// turns are how long the messages of snapshots may be read whose last turn was too short, by UID.
	turns map[types.UID]time.Duration
}

// The controller's permissions.
//
// +kubebuilder:rbac:groups=clew.dev,resources=conversationsnapshots,verbs=get;list;watch
// +kubebuilder:rbac:groups=clew.dev,resources=conversationsnapshots/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=clew.dev,resources=tasks;checkpoints,verbs=get;list;watch

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, workers int) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("conversationsnapshot").
		For(&v1alpha1.ConversationSnapshot{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, NewQueue: fairqueue.Sharing(workers)}).
		Complete(r)
}

// Reconcile resolves one snapshot, or verifies one that is resolved.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	after, err := r.reconcile(ctx, request)
	if err != nil {
		return requeue.Result(logf.FromContext(ctx), err)
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

func (r *Reconciler) reconcile(ctx context.Context, request ctrl.Request) (time.Duration, error) {
	s := &v1alpha1.ConversationSnapshot{}
	if err := r.Client.Get(ctx, request.NamespacedName, s); err != nil {
		return 0, err
	}
	if s.DeletionTimestamp != nil {
		r.forget(s)
		return 0, nil
	}
	old := s.Status.DeepCopy()
	after, err := r.update(ctx, s)
	if err != nil || equality.Semantic.DeepEqual(*old, s.Status) {
		return after, err
	}
	s.Status.ObservedGeneration = s.Generation
	if err := r.Client.Status().Update(ctx, s); err != nil {
		return 0, fmt.Errorf("write the status of ConversationSnapshot %s: %w", s.Name, err)
	}
	return after, nil
}

// update brings the status up to date, and returns when to reconcile again.
func (r *Reconciler) update(ctx context.Context, s *v1alpha1.ConversationSnapshot) (time.Duration, error) {
	long := tooLong{}
	if meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.SnapshotReady) {
		if after := r.untilDue(s); after > 0 {
			return after, nil
		}
		if err := r.verify(ctx, s); errors.As(err, &long) {
			return r.setDue(s, restAfter*long.turn), nil
		} else if err != nil {
			return 0, err
		}
		return r.setDue(s, r.every()), nil
	}
	unresolved, err := r.resolve(ctx, s)
	if errors.As(err, &long) {
		set(s, v1alpha1.SnapshotReady, metav1.ConditionFalse, v1alpha1.ReasonHistoryUnavailable, long.Error())
		return restAfter * long.turn, nil
	}
	if err != nil {
		return 0, err
	}
	if unresolved != nil {
		set(s, v1alpha1.SnapshotReady, metav1.ConditionFalse, unresolved.reason, unresolved.message)
		if unresolved.reason == v1alpha1.ReasonCorrupted {
			set(s, v1alpha1.SnapshotIntact, metav1.ConditionFalse, unresolved.reason, unresolved.message)
			return retryDamagedAfter, nil
		}
		return retryAfter, nil
	}
	set(s, v1alpha1.SnapshotReady, metav1.ConditionTrue, v1alpha1.ReasonResolved, "the position is resolved")
	return r.setDue(s, r.every()), nil
}

// set sets a condition of the snapshot.
func set(s *v1alpha1.ConversationSnapshot, kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&s.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: s.Generation,
	})
}

// every returns the interval of verification.
func (r *Reconciler) every() time.Duration {
	if r.VerifyEvery > 0 {
		return r.VerifyEvery
	}
	return verifyEvery
}

// untilDue returns the time until the snapshot's next verification. The snapshots that a
// manager finds when it starts are spread over the interval, so that they are not all read
// at once.
func (r *Reconciler) untilDue(s *v1alpha1.ConversationSnapshot) time.Duration {
	r.mu.Lock()
	at, ok := r.due[s.UID]
	r.mu.Unlock()
	if !ok {
		return r.setDue(s, rand.N(r.every())+1)
	}
	return at.Sub(r.Clock.Now())
}

// setDue schedules the snapshot's next verification.
func (r *Reconciler) setDue(s *v1alpha1.ConversationSnapshot, after time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.due == nil {
		r.due = map[types.UID]time.Time{}
	}
	r.due[s.UID] = r.Clock.Now().Add(after)
	return after
}

// forget drops the schedule of a snapshot that is deleted.
func (r *Reconciler) forget(s *v1alpha1.ConversationSnapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.due, s.UID)
	delete(r.turns, s.UID)
}
