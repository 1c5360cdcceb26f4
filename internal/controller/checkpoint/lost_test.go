package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// durables is a cache with one durable Checkpoint.
type durables struct {
	client.Client
	key string
}

func (d durables) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	asked := client.ListOptions{}
	asked.ApplyOptions(options)
	if asked.FieldSelector.String() == byRecord+"="+d.key {
		list.(*v1alpha1.CheckpointList).Items = []v1alpha1.Checkpoint{{ObjectMeta: metav1.ObjectMeta{Namespace: asked.Namespace, Name: "c"}}}
	}
	return nil
}

// losses is a store with a number of pages of lost checkpoints per task. It counts the pages
// that are read; each takes some time.
type losses struct {
	Store
	tasks []int
	takes time.Duration
	read  *atomic.Int64
}

func (s losses) LostCheckpoints(_ context.Context, each func([]history.CheckpointKey) error) error {
	for task, pages := range s.tasks {
		for n := range pages {
			s.read.Add(1)
			time.Sleep(s.takes) // the duration of a query, on the test's fake clock
			err := each([]history.CheckpointKey{{Task: history.Key{Namespace: "team", UID: fmt.Sprint(task)}, Number: int64(n)}})
			if errors.Is(err, history.ErrSkipTask) {
				break
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// A task may have a million losses, which are settled soon and stay listed for good.
func TestSettledLossesDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		store := losses{tasks: []int{2000, 1}, read: &atomic.Int64{}}
		r := &Reconciler{Client: durables{key: recordKey("1", 0)}, Store: store}
		queue := workqueue.NewTyped[reconcile.Request]()
		defer queue.ShutDown()
		began := time.Now()
		_, err := r.addLost(t.Context(), queue, false)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(queue.Len()).To(gomega.Equal(1))
		g.Expect(time.Since(began)).To(gomega.Equal(lostPause))
		g.Expect(store.read.Load()).To(gomega.BeEquivalentTo(2), "one page of the settled ones is read")
	})
}

// A loss behind settled ones is found by a full scan.
func TestEveryLossIsFoundEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		store := losses{tasks: []int{2000, 1}, read: &atomic.Int64{}}
		r := &Reconciler{Client: durables{key: recordKey("0", 1999)}, Store: store}
		queue := workqueue.NewTyped[reconcile.Request]()
		defer queue.ShutDown()
		began := time.Now()
		worked, err := r.addLost(t.Context(), queue, true)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(queue.Len()).To(gomega.Equal(1))
		g.Expect(time.Since(began)).To(gomega.Equal(2001*lostPause), "slowly")
		g.Expect(worked).To(gomega.BeZero())
	})
}

// notifier delivers the notifications of its test.
type notifier struct{ f func(history.Notification) }

func (n *notifier) Subscribe(f func(history.Notification)) { n.f = f }

// However many losses there are, and however often something changes, the scans take a small
// part of the time of the store and of this process.
func TestTheTimeOfScansIsBounded(t *testing.T) {
	for name, test := range map[string]struct {
		tasks []int
		takes time.Duration // for each page
		while time.Duration
	}{
		"of one task": {[]int{2000}, 10 * time.Millisecond, time.Hour},
		"of many":     {slices.Repeat([]int{1}, 2000), 10 * time.Millisecond, time.Hour},
		"of many in a store so slow that a scan takes minutes": {slices.Repeat([]int{1}, 2000), 100 * time.Millisecond, 6 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := gomega.NewWithT(t)
				ctx, cancel := context.WithCancel(t.Context())
				store := losses{tasks: test.tasks, takes: test.takes, read: &atomic.Int64{}}
				r := &Reconciler{Client: durables{}, Store: store}
				queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
				defer queue.ShutDown()
				changes := &notifier{}
				g.Expect(r.fromLost(changes).Start(ctx, queue)).To(gomega.Succeed())
				began := time.Now()
				for time.Since(began) < test.while {
					changes.f(history.Notification{})
					time.Sleep(time.Second) // on the fake clock: the period under test passes
				}
				cancel()
				time.Sleep(time.Second) // on the fake clock: pages that are being read end
				worked := time.Duration(store.read.Load()) * store.takes
				g.Expect(worked).To(gomega.BeNumerically("<", test.while/5), "a tenth for changes, and a tenth for full scans")
				g.Expect(worked).To(gomega.BeNumerically(">", time.Minute))
			})
		})
	}
}
