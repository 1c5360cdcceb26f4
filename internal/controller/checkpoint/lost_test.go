package checkpoint

import (
	"context"
	"fmt"
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

// pagesLost is a store with so many pages of lost checkpoints.
type pagesLost struct {
	Store
	pages int
}

func (s pagesLost) LostCheckpoints(_ context.Context, each func([]history.CheckpointKey) error) error {
	for n := range s.pages {
		key := history.CheckpointKey{Task: history.Key{Namespace: "team", UID: fmt.Sprint(n)}, Number: 1}
		if err := each([]history.CheckpointKey{key}); err != nil {
			return err
		}
	}
	return nil
}

// A task may tell of a million losses, which are settled soon, and are listed for good.
func TestLossesThatAreSettledKeepNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		r := &Reconciler{Client: durables{key: recordKey("1999", 1)}, Store: pagesLost{pages: 2000}}
		queue := workqueue.NewTyped[reconcile.Request]()
		defer queue.ShutDown()
		began := time.Now()
		g.Expect(r.addLost(t.Context(), queue)).To(gomega.Succeed())
		g.Expect(queue.Len()).To(gomega.Equal(1))
		g.Expect(time.Since(began)).To(gomega.Equal(lostPause))
	})
}
