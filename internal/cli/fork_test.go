package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

func TestFork(t *testing.T) {
	b := newBench(t)
	task := b.task("source", v1alpha1.ReasonRunning)
	b.checkpoint(task, 1)
	playManager(b, &v1alpha1.ForkList{}, func(f *v1alpha1.Fork) bool {
		f.Status.Source = &v1alpha1.SourceStatus{TaskUID: string(task.UID), Checkpoint: 1, Commit: "c0ffee"}
		f.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ForkComplete, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonForked, LastTransitionTime: metav1.NewTime(noon)}}
		return true
	})
	out, _ := b.must("fork", "source", "--name", "branchling", "--from", "1", "--prompt", "Otherwise.", "--no-conversation")
	wantText(t, "output", "fork.clew.dev/branchling created: task.clew.dev/branchling starts from checkpoint 1 of source\n", out)
	f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "branchling"}}
	b.get(f)
	want := v1alpha1.ForkSpec{
		SourceRef:     v1alpha1.NameReference{Name: "source"},
		CheckpointRef: &v1alpha1.NameReference{Name: "source-1"},
		Conversation:  v1alpha1.ConversationExclude,
		Variants:      []v1alpha1.ForkVariant{{Name: "branchling", Prompt: ptr.To("Otherwise.")}},
		RequestedBy:   "admin",
	}
	if diff := cmp.Diff(want, f.Spec); diff != "" {
		t.Errorf("spec of the Fork (-want +got):\n%s", diff)
	}
	_, _, err := b.clew("", "fork", "source")
	wantError(t, err, "--name")
	_, _, err = b.clew("", "fork", "source", "--name", "source")
	wantError(t, err, "a fork cannot have its source's name")
}
