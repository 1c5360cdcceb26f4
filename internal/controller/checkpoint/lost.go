package checkpoint

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// A Checkpoint that is ready and durable is settled, and is not reconciled: there are many,
// and nothing changes. Only when the gitstore was restored from an older copy may a durable
// checkpoint be lost. The history store lists the lost ones; it is asked after each of its
// notifications, and their objects are reconciled again.

// A loss is never removed from the list, even once its object reports it, and tasks determine
// how many there are. So the scan after a notification ends, for each task, with
// the first page whose losses are all settled; a full scan runs periodically at a low rate.

const (
	// lostEvery is the minimum pause after a scan for changes, or after one that failed;
	// lostAllEvery is that after a full scan.
	lostEvery    = 2 * time.Second
	lostAllEvery = 10 * time.Minute
	// lostShare is the pause after a scan as a multiple of its duration, so that the scans
	// for changes and the full scans each take at most a tenth of the time.
	lostShare = 9
	// lostPause is the pause after a page with objects to reconcile, and after every page
	// of a full scan.
	lostPause = 100 * time.Millisecond
)

// byRecord is the cache's index of durable Checkpoints by the key of their record.
const byRecord = "durableOfRecord"

// recordKey identifies the record of a checkpoint.
func recordKey(taskUID string, number int64) string { return fmt.Sprintf("%s/%d", taskUID, number) }

// durable is the index function of byRecord.
func durable(object client.Object) []string {
	c, ok := object.(*v1alpha1.Checkpoint)
	if !ok || c.Status.Number == 0 || !saysDurable(c) {
		return nil
	}
	return []string{recordKey(c.Status.TaskUID, c.Status.Number)}
}

// saysDurable reports whether the object is durable according to its status.
func saysDurable(c *v1alpha1.Checkpoint) bool {
	return meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.CheckpointDurable)
}

// fromLost enqueues the Checkpoints that are durable according to their status, but lost.
func (r *Reconciler) fromLost(notifications Notifications) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		changed := make(chan struct{}, 1)
		changed <- struct{}{} // notifications may have been missed before this process started
		notifications.Subscribe(func(history.Notification) {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
		go r.watchLost(ctx, changed, queue)
		go r.watchAllLost(ctx, queue)
		return nil
	})
}

// watchLost scans for new losses after each notification.
func (r *Reconciler) watchLost(ctx context.Context, changed <-chan struct{}, queue workqueue.TypedInterface[reconcile.Request]) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			r.scanLost(ctx, queue, false)
		}
	}
}

// watchAllLost runs full scans, from time to time.
func (r *Reconciler) watchAllLost(ctx context.Context, queue workqueue.TypedInterface[reconcile.Request]) {
	for ctx.Err() == nil {
		r.scanLost(ctx, queue, true)
	}
}

// scanLost scans for losses until the store has answered, and then pauses; the longer the
// scan took, the longer the pause.
func (r *Reconciler) scanLost(ctx context.Context, queue workqueue.TypedInterface[reconcile.Request], all bool) {
	for ctx.Err() == nil {
		worked, err := r.addLost(ctx, queue, all)
		minimum := lostEvery
		if all && err == nil {
			minimum = lostAllEvery
		}
		pause(ctx, max(minimum, lostShare*worked))
		if err == nil {
			return
		}
		logf.FromContext(ctx).V(1).Info("could not ask which checkpoints are lost", "error", err.Error())
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// addLost enqueues the Checkpoints that are durable according to their status, but lost. It
// returns how long that took without its pauses. Unless all is set, it skips the remaining
// losses of a task after a page whose losses are all settled.
func (r *Reconciler) addLost(ctx context.Context, queue workqueue.TypedInterface[reconcile.Request], all bool) (worked time.Duration, err error) {
	began := time.Now()
	err = r.Store.LostCheckpoints(ctx, func(lost []history.CheckpointKey) error {
		queued := r.queueLost(ctx, lost, queue)
		worked += time.Since(began)
		if queued || all {
			pause(ctx, lostPause)
		}
		began = time.Now()
		if !queued && !all && ctx.Err() == nil && ofOneTask(lost) {
			return history.ErrSkipTask
		}
		return ctx.Err()
	})
	return worked + time.Since(began), err
}

// ofOneTask reports whether the checkpoints, which are sorted by task, are all of one task.
func ofOneTask(lost []history.CheckpointKey) bool {
	return len(lost) > 0 && lost[0].Task == lost[len(lost)-1].Task
}

// queueLost enqueues the Checkpoints of lost records that are durable according to their
// status.
func (r *Reconciler) queueLost(ctx context.Context, lost []history.CheckpointKey, queue workqueue.TypedInterface[reconcile.Request]) (queued bool) {
	for _, k := range lost {
		key := recordKey(k.Task.UID, k.Number)
		requests, err := r.listed(ctx, k.Task.Namespace, client.MatchingFields{byRecord: key})
		if err != nil {
			logf.FromContext(ctx).Error(err, "could not find the objects of a lost checkpoint")
		}
		for _, request := range requests {
			r.doubt(key)
			queue.Add(request)
			queued = true
		}
	}
	return queued
}

// doubt makes the next reconciliation read a record although its Checkpoint is settled.
func (r *Reconciler) doubt(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.doubted == nil {
		r.doubted = map[string]bool{}
	}
	r.doubted[key] = true
}

// isDoubted reports whether the record has to be read.
func (r *Reconciler) isDoubted(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.doubted[key]
}

// trust ends a doubt: the record was read, and the status was written.
func (r *Reconciler) trust(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.doubted, key)
}
