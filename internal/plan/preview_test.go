package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// What a preview says is what the manager then does, whatever the target.
func TestAPreviewSaysWhatTheRewindThenDoes(t *testing.T) {
	for name, prepare := range map[string]func(*scene){
		"a number": func(s *scene) {
			s.o.RewindRecord = recorded()
			s.rewindTo("back", v1alpha1.RewindBoth, toNumber(3))
		},
		"an undo": func(s *scene) {
			s.o.RewindUndone, s.o.RewindRecord = done("before", v1alpha1.RewindCode), nine()
			s.rewindTo("back", v1alpha1.RewindBoth, undoOf("before"))
		},
		"a number that does not exist": func(s *scene) {
			s.o.RewindRecord = RewindRecord{Known: true}
			s.rewindTo("back", v1alpha1.RewindBoth, toNumber(33))
		},
		"no store": func(s *scene) { s.rewindTo("back", v1alpha1.RewindBoth, toNumber(3)) },
		"a commit": func(s *scene) {
			s.rewindTo("back", v1alpha1.RewindCode, v1alpha1.RewindTarget{Commit: "0123456789012345678901234567890123456789"})
		},
		"a running task that must not be stopped": func(s *scene) {
			s.o.RewindRecord = recorded()
			s.rewindTo("back", v1alpha1.RewindBoth, toNumber(3)).change(func(t *v1alpha1.Task) { t.Spec.Rewind.WhenRunning = v1alpha1.WhenRunningRefuse })
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			prepare(s)
			before := s.o.Task.DeepCopy()
			preview := PreviewRewind(s.o, s.now)
			if diff := cmp.Diff(before, s.o.Task); diff != "" {
				t.Fatalf("the preview changed the task (-before +after):\n%s", diff)
			}
			s.step()
			got := s.status().Rewind
			switch got.State {
			case v1alpha1.OperationInProgress:
				if preview.Accepted == nil || preview.Refusal != nil || preview.Waits != nil || !preview.Stops {
					t.Fatalf("the preview is %+v, and the rewind was accepted", preview)
				}
				s.podGone()
				if diff := cmp.Diff(s.startedOperation(), *preview.Operation); diff != "" {
					t.Errorf("the operation (-what happened +the preview):\n%s", diff)
				}
			case v1alpha1.OperationRefused:
				if diff := cmp.Diff(&Blocker{got.Reason, got.Message}, preview.Refusal); diff != "" {
					t.Errorf("the refusal (-what happened +the preview):\n%s", diff)
				}
			default:
				if diff := cmp.Diff(&Blocker{got.Reason, got.Message}, preview.Waits); diff != "" {
					t.Errorf("what it waits for (-what happened +the preview):\n%s", diff)
				}
			}
		})
	}
}

func TestAPreviewOfWhatCannotBeRewoundNow(t *testing.T) {
	s := running(t)
	s.o.RewindRecord = recorded()
	s.rewindTo("back", v1alpha1.RewindBoth, toNumber(3))
	s.change(func(t *v1alpha1.Task) {
		t.Status.Rewind = &v1alpha1.OperationStatus{ID: "other", State: v1alpha1.OperationInProgress}
	})
	if got := PreviewRewind(s.o, s.now); got.Waits == nil || got.Waits.Message != "the rewind other is in progress: wait until it has ended" {
		t.Errorf("the preview during another rewind is %+v", got)
	}
	s.change(func(t *v1alpha1.Task) { t.DeletionTimestamp = ptr.To(metav1.NewTime(s.now)) })
	if got := PreviewRewind(s.o, s.now); got.Refusal == nil || got.Refusal.Message != "the task is being deleted" {
		t.Errorf("the preview of a task that is being deleted is %+v", got)
	}
}
