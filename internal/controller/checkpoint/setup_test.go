package checkpoint

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/internal/controller/fairqueue"
	"github.com/clew-dev/clew/internal/history"
)

// TestANotificationIsOneRequest: whoever delivers notifications delivers those of all tenants, and a task may
// have any number of Checkpoints. They are looked up by a worker.
func TestANotificationIsOneRequest(t *testing.T) {
	g := gomega.NewWithT(t)
	queue := fairqueue.New("", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Millisecond, time.Second))
	t.Cleanup(queue.ShutDown)
	hub, r := &notifier{}, &Reconciler{} // without a client to list with
	g.Expect(r.fromHistory(hub).Start(t.Context(), queue)).To(gomega.Succeed())
	for range 1000 {
		hub.f(history.Notification{Task: history.Task{Namespace: "team", Name: "work", UID: "uid"}})
	}
	g.Eventually(queue.Len).Should(gomega.Equal(1))
	found, _ := queue.Get()
	g.Expect(found.String()).To(gomega.Equal("team/history/work"))
}
