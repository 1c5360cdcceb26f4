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

// A Checkpoint that is ready and durable is left alone: there are many, and
// nothing changes. Only when the gitstore was put back to an older copy, a
// checkpoint may be lost that was durable. The history store lists those; it is
// asked whenever it tells of a change, and their objects are looked at again.

// A loss stays listed for good, though it is settled when its object says it, and how
// many there are, tasks decide. So what is looked at upon a change ends, for each task,
// with the first page that is settled as a whole; now and then, and slowly, all is.

const (
	// lostEvery is for how long the store is not asked after a look at what has changed,
	// or one that failed, and lostAllEvery after one at all.
	lostEvery    = 2 * time.Second
	lostAllEvery = 10 * time.Minute
	// lostShare is how many times as long as a look took there is none after it: those
	// at what changes, and those at all, each take a tenth of the time at most.
	lostShare = 9
	// lostPause is after each page with objects that are looked at, and after each of
	// all.
	lostPause = 100 * time.Millisecond
)

// byRecord is the cache's index of the durable Checkpoints by what they stand for.
const byRecord = "durableOfRecord"

func recordKey(taskUID string, number int64) string { return fmt.Sprintf("%s/%d", taskUID, number) }

// durable is the index.
func durable(object client.Object) []string {
	c, ok := object.(*v1alpha1.Checkpoint)
	if !ok || c.Status.Number == 0 || !saysDurable(c) {
		return nil
	}
	return []string{recordKey(c.Status.TaskUID, c.Status.Number)}
}

func saysDurable(c *v1alpha1.Checkpoint) bool {
	return meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.CheckpointDurable)
}

// fromLost has the Checkpoints looked at that say that they are durable, and are lost.
func (r *Reconciler) fromLost(notifications Notifications) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		changed := make(chan struct{}, 1)
		changed <- struct{}{} // nobody knows what was told before this process began
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

// watchLost has the losses looked at that the store may just have told of.
func (r *Reconciler) watchLost(ctx context.Context, changed <-chan struct{}, queue workqueue.TypedInterface[reconcile.Request]) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			r.untilAsked(ctx, queue, false)
		}
	}
}

// watchAllLost has all losses looked at, now and then.
func (r *Reconciler) watchAllLost(ctx context.Context, queue workqueue.TypedInterface[reconcile.Request]) {
	for ctx.Err() == nil {
		r.untilAsked(ctx, queue, true)
	}
}

// untilAsked asks the store until it answers, and pauses. The more work that was, the
// longer it pauses.
func (r *Reconciler) untilAsked(ctx context.Context, queue workqueue.TypedInterface[reconcile.Request], all bool) {
	for ctx.Err() == nil {
		worked, err := r.addLost(ctx, queue, all)
		rest := lostEvery
		if all && err == nil {
			rest = lostAllEvery
		}
		pause(ctx, max(rest, lostShare*worked))
		if err == nil {
			return
		}
		logf.FromContext(ctx).V(1).Info("could not ask which checkpoints are lost", "error", err.Error())
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// addLost queues the Checkpoints that say that they are durable, and are lost, and
// tells how long it took without its pauses. Unless all are wanted, it leaves out what
// follows on a page of one task that is settled.
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

func ofOneTask(lost []history.CheckpointKey) bool {
	return len(lost) > 0 && lost[0].Task == lost[len(lost)-1].Task
}

// queueLost queues the Checkpoints of lost records that say that they are durable.
func (r *Reconciler) queueLost(ctx context.Context, lost []history.CheckpointKey, queue workqueue.TypedInterface[reconcile.Request]) (queued bool) {
	for _, k := range lost {
		key := recordKey(k.Task.UID, k.Number)
		for _, request := range r.listed(ctx, k.Task.Namespace, client.MatchingFields{byRecord: key}) {
			r.doubt(key)
			queue.Add(request)
			queued = true
		}
	}
	return queued
}

// doubt has the store asked for a record though its Checkpoint is settled.
func (r *Reconciler) doubt(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.doubted == nil {
		r.doubted = map[string]bool{}
	}
	r.doubted[key] = true
}

func (r *Reconciler) isDoubted(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.doubted[key]
}

// trust ends a doubt: the store was asked, and its answer is written.
func (r *Reconciler) trust(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.doubted, key)
}
