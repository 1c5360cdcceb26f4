package toolcall

import (
	"context"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// world stands in for the history store, with one call, and for the API server, with a supervisor and its
// child.
type world struct {
	Store
	client.Client
	call  *history.ToolCall // nil once it is gone
	tasks map[string]*v1alpha1.Task
	// state is what the history store knows of the supervisor.
	state history.TaskState
	// onRead is called for each Task that is read.
	onRead func(name string)
	wrote  []string
}

func (w *world) ToolCall(context.Context, string, string) (history.ToolCall, error) {
	if w.call == nil {
		return history.ToolCall{}, fmt.Errorf("%w: the call", history.ErrNotFound)
	}
	return *w.call, nil
}

func (w *world) TaskState(context.Context, string) (history.TaskState, error) { return w.state, nil }

func (w *world) NoteToolCall(_ context.Context, id, note string) error {
	if w.wrote = append(w.wrote, "note of "+id); w.call != nil {
		w.call.Noted = note
	}
	return nil
}

func (w *world) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	task, found := w.tasks[key.Name], object.(*v1alpha1.Task)
	if task == nil {
		return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("tasks").GroupResource(), key.Name)
	}
	task.DeepCopyInto(found)
	w.onRead(key.Name)
	return nil
}

func (w *world) Patch(_ context.Context, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
	w.wrote = append(w.wrote, "change of "+object.GetName())
	return nil
}

// newWorld returns a world in which the agent of the supervisor lead has called task_stop for its child a,
// which works.
func newWorld() *world {
	supervisor := builders.Task("lead", builders.InNamespace("team"), builders.WithUID("uid-of-lead"), func(t *v1alpha1.Task) { t.Spec.Role = v1alpha1.RoleSupervisor })
	child := builders.Task("lead-a", builders.InNamespace("team"), builders.WithUID("uid-of-a"))
	child.Status.Parent = &v1alpha1.ParentStatus{Name: "lead", UID: "uid-of-lead"}
	child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.TaskSucceeded, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonRunning}}
	child.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "task:lead", Time: &metav1.Time{Time: time.Now()}, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:parentRef":{"f:name":{}}}}`)}}
	return &world{
		tasks:  map[string]*v1alpha1.Task{"lead": supervisor, "lead-a": child},
		call:   &history.ToolCall{ID: "one", Task: lead(), Tool: string(v1alpha1.ToolTaskStop), Arguments: []byte(`{"task":"a"}`)},
		onRead: func(string) {},
	}
}

// TestACallOfAnOlderCopyOfTheHistoryHasNoEffectYet: it may have been answered, or taken back, since.
func TestACallOfAnOlderCopyOfTheHistoryHasNoEffectYet(t *testing.T) {
	w := newWorld()
	w.tasks["lead"].Status.RecordSequence, w.state.LastSequence = 7, 6
	r := &Reconciler{Client: w, Live: w, Store: w, Phases: &Phases{}}
	request := requestOf("team", "uid-of-lead", "one")
	for range 2 {
		if _, err := r.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		if behind := w.state.LastSequence < 7; behind != (len(w.wrote) == 0) {
			t.Errorf("the history has the records through %d of 7, and it has written %v", w.state.LastSequence, w.wrote)
		}
		if !r.waits.has(request) {
			t.Error("nothing wakes it")
		}
		w.state.LastSequence = 7
	}
}

// TestACallThatIsTakenBackAsItIsLookedAtHasNoEffect: what it depends on is read in several requests.
func TestACallThatIsTakenBackAsItIsLookedAtHasNoEffect(t *testing.T) {
	for _, takenBack := range []bool{false, true} {
		w := newWorld()
		w.onRead = func(name string) {
			if takenBack && name == "lead-a" {
				w.call = nil
			}
		}
		r := &Reconciler{Client: w, Live: w, Store: w, Phases: &Phases{}}
		request := requestOf("team", "uid-of-lead", "one")
		if _, err := r.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		if takenBack != (len(w.wrote) == 0) {
			t.Errorf("taken back: %t, and it has written %v", takenBack, w.wrote)
		}
		if takenBack && r.waits.has(request) {
			t.Error("it waits for something although it is gone")
		}
	}
}
