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

const (
	// lostEvery is how often the store is asked at most, and lostAtLeast at least.
	// lostPause is between the parts of an answer that have objects looked at: how
	// many there are, tasks decide. What is settled holds nobody else's up.
	lostEvery   = 2 * time.Second
	lostAtLeast = 10 * time.Minute
	lostPause   = 100 * time.Millisecond
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
		return nil
	})
}

func (r *Reconciler) watchLost(ctx context.Context, changed <-chan struct{}, queue workqueue.TypedInterface[reconcile.Request]) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(lostAtLeast):
		}
		for ctx.Err() == nil {
			err := r.addLost(ctx, queue)
			pause(ctx, lostEvery)
			if err == nil {
				break
			}
			logf.FromContext(ctx).V(1).Info("Could not ask which checkpoints are lost.", "error", err.Error())
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// addLost queues the Checkpoints that say that they are durable, and are lost.
func (r *Reconciler) addLost(ctx context.Context, queue workqueue.TypedInterface[reconcile.Request]) error {
	return r.Store.LostCheckpoints(ctx, func(lost []history.CheckpointKey) error {
		queued := false
		for _, k := range lost {
			key := recordKey(k.Task.UID, k.Number)
			for _, request := range r.listed(ctx, k.Task.Namespace, client.MatchingFields{byRecord: key}) {
				r.doubt(key)
				queue.Add(request)
				queued = true
			}
		}
		if queued {
			pause(ctx, lostPause)
		}
		return ctx.Err()
	})
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
