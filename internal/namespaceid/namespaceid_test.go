package namespaceid

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	clocktesting "k8s.io/utils/clock/testing"
)

// namespaces is an API server with one namespace, if uid is set, that counts requests.
type namespaces struct {
	metadata.Getter

	uid      string
	created  time.Time
	removing bool
	err      error
	asked    atomic.Int64
}

func (n *namespaces) Resource(schema.GroupVersionResource) metadata.Getter { return n }

func (n *namespaces) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*metav1.PartialObjectMetadata, error) {
	n.asked.Add(1)
	switch {
	case n.err != nil:
		return nil, n.err
	case n.uid == "":
		return nil, apierrors.NewNotFound(corev1.Resource("namespaces"), name)
	}
	found := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(n.uid), CreationTimestamp: metav1.NewTime(n.created)}}
	if n.removing {
		found.DeletionTimestamp = &found.CreationTimestamp
	}
	return found, nil
}

// TestAnAnswerIsNeverAboutTheNamespaceBefore: an answer is kept for less than a namespace needs to
// be removed, and not at all from when its removal has begun.
func TestAnAnswerIsNeverAboutTheNamespaceBefore(t *testing.T) {
	created := time.Now().Truncate(time.Second)
	api, clock := &namespaces{uid: "first", created: created}, clocktesting.NewFakeClock(time.Now())
	reader := newReader(api, clock)
	want := func(uid string, asked int64) {
		t.Helper()
		got, err := reader.Get(t.Context(), "team")
		if err != nil || got.UID != uid {
			t.Fatalf("the namespace is %+v, %v; want %s", got, err, uid)
		}
		if n := api.asked.Load(); n != asked {
			t.Fatalf("the API server was asked %d times, want %d", n, asked)
		}
	}
	want("first", 1)
	want("first", 1)
	clock.Step(kept + time.Millisecond)
	api.removing = true
	want("first", 2)
	want("first", 3)
	api.uid, api.removing = "second", false
	want("second", 4)
	if got, _ := reader.Get(t.Context(), "team"); !got.Created.Equal(created) {
		t.Errorf("it was created at %s, want %s", got.Created, created)
	}
}

func TestWithoutAnAnswerTheNamespaceIsNotKnown(t *testing.T) {
	api, clock := &namespaces{uid: "first", created: time.Now()}, clocktesting.NewFakeClock(time.Now())
	reader := newReader(api, clock)
	if _, err := reader.Get(t.Context(), "team"); err != nil {
		t.Fatal(err)
	}
	clock.Step(kept + time.Millisecond)
	api.err = errors.New("no route to host")
	if got, err := reader.Get(t.Context(), "team"); !errors.Is(err, api.err) || got.UID != "" {
		t.Errorf("with the API server down: %+v, %v", got, err)
	}
	api.err, api.uid = nil, ""
	if _, err := reader.Get(t.Context(), "team"); !errors.Is(err, ErrNone) {
		t.Errorf("without the namespace: %v", err)
	}
}
