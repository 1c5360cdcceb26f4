package v1alpha1_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
	"github.com/clew-dev/clew/internal/testing/refnames"
)

// The table is also used for package refname and git itself: every branch that the API accepts
// can be created, and one that cannot be created is refused at once.
func TestTheAPIAcceptsTheBranchNamesThatGitAccepts(t *testing.T) {
	task := created(t, builders.Task("branches"))
	conversationAlone := func(t *v1alpha1.Task) { t.Spec.Rewind.Scope = v1alpha1.RewindConversation }
	ask := func(id, branch string, options ...builders.TaskOption) error {
		asked := task.DeepCopy()
		builders.Rewind(id, "branches-1")(asked)
		for _, option := range options {
			option(asked)
		}
		asked.Spec.Rewind.Preserve, asked.Spec.Rewind.Branch = v1alpha1.PreserveBranch, branch
		return server.Client.Update(t.Context(), asked, client.DryRunAll)
	}
	for branch, want := range refnames.Branches() {
		if err := ask("r", branch); branch != "" && (err == nil) != want {
			t.Errorf("the API's answer to the branch %q is not what git does: %v", branch, err)
		}
	}
	checkpoint := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "branched"}, Spec: v1alpha1.CheckpointSpec{
		TaskRef: v1alpha1.NameReference{Name: "branches"},
	}}
	for branch, want := range refnames.Branches() {
		checkpoint.Spec.Branches = []v1alpha1.CheckpointBranch{{Name: branch}}
		if err := server.Client.Create(t.Context(), checkpoint.DeepCopy(), client.DryRunAll); (err == nil) != want {
			t.Errorf("the API's answer to a Checkpoint's branch %q is not what git does: %v", branch, err)
		}
	}
	for id, want := range refnames.IDs() {
		err := ask(id, "")
		if (err == nil) != want {
			t.Errorf("the API's answer to the id %q, and so its branch, is not what git does: %v", id, err)
		}
		if !want {
			expectRefused(t, err, "choose another id, or set branch")
		}
		if err := ask(id, "before/refactoring"); err != nil {
			t.Errorf("the id %q is refused although rewind.branch has another name: %v", id, err)
		}
		if err := ask(id, "", conversationAlone); err != nil {
			t.Errorf("the id %q is refused although the rewind creates no branch: %v", id, err)
		}
	}
}
