package task

import (
	"context"
	"testing"

	"github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/fakehistory"
)

// empty is an API server without objects.
type empty struct{ client.Client }

func (empty) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (empty) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// healing is a store that was restored from an older copy, and has everything again after its
// first answer.
type healing struct {
	*fakehistory.Store
	whole bool
}

func (h *healing) TaskState(context.Context, string) (history.TaskState, error) {
	defer func() { h.whole = true }()
	if !h.whole {
		return history.TaskState{LastSequence: 3}, nil
	}
	return history.TaskState{LastSequence: 7}, nil
}

func (h *healing) ResolvePosition(context.Context, string, history.PositionQuery) (history.Resolved, error) {
	defer func() { h.whole = true }()
	if !h.whole {
		return history.Resolved{}, history.ErrNotFound
	}
	return history.Resolved{Asked: 5, Position: history.Position{Position: 5}}, nil
}

// A store that lacks the message that a rewind names, and is complete a moment later, must
// not be taken for a complete one that does not have the message.
func TestARewindIsResolvedAfterTheStoreIsKnownToBeComplete(t *testing.T) {
	g := gomega.NewWithT(t)
	r := &Reconciler{Store: &healing{Store: fakehistory.New()}, Clock: clock.RealClock{}, Client: empty{}, Live: empty{}}
	task := &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "tidy-up", UID: "uid"}}
	task.Spec.Rewind = &v1alpha1.Rewind{ID: "r1", To: v1alpha1.RewindTarget{Message: ptr.To[int64](5)}}
	m := r.memory.of(task)
	defer m.Unlock()
	o, err := r.observe(t.Context(), task, m, r.live())
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(o.History.State.LastSequence).To(gomega.BeEquivalentTo(3))
	g.Expect(o.RewindPosition.Found).NotTo(gomega.BeNil())
}
