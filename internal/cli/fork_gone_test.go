package cli

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

func TestForkOfATaskThatIsGone(t *testing.T) {
	b := newBench(t)
	b.withHistory(map[string]any{
		"GET tasks/gone/checkpoints":     historyv1.CheckpointList{Items: []historyv1.Checkpoint{{TaskUID: "u1", Number: 9}}},
		"GET tasks/gone/checkpoints/3":   historyv1.Checkpoint{TaskUID: "u1", Number: 3},
		"GET tasks/empty/checkpoints":    historyv1.CheckpointList{},
		"GET tasks/existing/checkpoints": historyv1.CheckpointList{Items: []historyv1.Checkpoint{{TaskUID: "former", Number: 1}}},
	})
	b.must("fork", "gone", "--name", "again", "--at", "3", "--wait=false", "--variant", "name=again,env=API_KEY=x")
	f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "again"}}
	b.get(f)
	three := int64(3)
	want := v1alpha1.ForkSpec{
		SourceRef: v1alpha1.NameReference{Name: "gone"}, TaskUID: "u1", At: &v1alpha1.StartPoint{CheckpointNumber: &three}, Conversation: v1alpha1.ConversationInclude,
		Variants:    []v1alpha1.ForkVariant{{Name: "again", Template: &v1alpha1.VariantTemplate{Env: []corev1.EnvVar{{Name: "API_KEY", Value: "x"}}}}},
		RequestedBy: "admin",
	}
	if diff := cmp.Diff(want, f.Spec); diff != "" {
		t.Errorf("spec of the Fork (-want +got):\n%s", diff)
	}

	b.task("existing", v1alpha1.ReasonRunning)
	b.must("fork", "existing", "--name", "former", "--uid", "former", "--wait=false")
	f = &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "former"}}
	b.get(f)
	if f.Spec.TaskUID != "former" {
		t.Errorf("the Fork is of %q, want the former task", f.Spec.TaskUID)
	}

	_, _, err := b.clew("", "fork", "unknown", "--name", "x")
	wantError(t, err, `there is no task "unknown"`)
	_, _, err = b.clew("", "fork", "unknown", "--name", "x", "--uid", "u7")
	wantError(t, err, "with the UID u7")
	_, _, err = b.clew("", "fork", "empty", "--name", "x")
	wantError(t, err, "no checkpoint to fork from")
}
