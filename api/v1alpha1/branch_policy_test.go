package v1alpha1_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
)

func branchedCheckpoint(name string, branches ...v1alpha1.CheckpointBranch) *v1alpha1.Checkpoint {
	return &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1alpha1.CheckpointSpec{
		TaskRef: v1alpha1.NameReference{Name: "pushed"}, Branches: branches,
	}}
}

// TestWhoMayPushABranch: a branch is pushed with the Task's credentials, so whoever could not
// have the Task publish it must not have it pushed.
func TestWhoMayPushABranch(t *testing.T) {
	const clew = "clew.dev"
	checkpoints := []rbacv1.PolicyRule{right(clew, "create", "checkpoints"), right(clew, "patch", "checkpoints"), right(clew, "get", "checkpoints")}
	pushed := v1alpha1.CheckpointBranch{Name: "a", Push: v1alpha1.PushOrigin}
	existing := branchedCheckpoint("pushed-by-others", pushed)
	must(t, server.Client.Create(t.Context(), existing))
	const refused = "you need the right to patch that Task"
	for name, test := range map[string]struct {
		rights   []rbacv1.PolicyRule
		act      func(client.Client) error
		sentence string
	}{
		"push-all": {append(checkpoints, right(clew, "patch", "tasks", "pushed")), func(c client.Client) error {
			return c.Create(t.Context(), branchedCheckpoint("push-all", pushed), client.DryRunAll)
		}, ""},
		"push-no-task": {checkpoints, func(c client.Client) error {
			return c.Create(t.Context(), branchedCheckpoint("push-no-task", pushed), client.DryRunAll)
		}, refused},
		"push-other-task": {append(checkpoints, right(clew, "patch", "tasks", "other")), func(c client.Client) error {
			return c.Create(t.Context(), branchedCheckpoint("push-other-task", pushed), client.DryRunAll)
		}, refused},
		"push-approve": {checkpoints, func(c client.Client) error {
			changed := existing.DeepCopy()
			changed.Spec.Branches[0].ApprovedCommit = strings.Repeat("a", 40)
			return c.Patch(t.Context(), changed, client.MergeFrom(existing), client.DryRunAll)
		}, refused},
		"push-keep": {checkpoints, func(c client.Client) error {
			changed := existing.DeepCopy()
			changed.Spec.Retention = v1alpha1.CheckpointKept
			return c.Patch(t.Context(), changed, client.MergeFrom(existing), client.DryRunAll)
		}, ""},
		"push-keep-and-add": {checkpoints, func(c client.Client) error {
			changed := existing.DeepCopy()
			changed.Spec.Branches = append(changed.Spec.Branches, v1alpha1.CheckpointBranch{Name: "b"})
			return c.Patch(t.Context(), changed, client.MergeFrom(existing), client.DryRunAll)
		}, ""},
		"push-no-more": {checkpoints, func(c client.Client) error {
			changed := existing.DeepCopy()
			changed.Spec.Branches[0].Push = v1alpha1.PushNever
			return c.Patch(t.Context(), changed, client.MergeFrom(existing), client.DryRunAll)
		}, ""},
		"push-one-more": {checkpoints, func(c client.Client) error {
			changed := existing.DeepCopy()
			changed.Spec.Branches = append(changed.Spec.Branches, v1alpha1.CheckpointBranch{Name: "b", Push: v1alpha1.PushOrigin})
			return c.Patch(t.Context(), changed, client.MergeFrom(existing), client.DryRunAll)
		}, refused},
		"check-out": {append(checkpoints, right(clew, "patch", "tasks", "pushed")), func(c client.Client) error {
			return c.Create(t.Context(), branchedCheckpoint("check-out", v1alpha1.CheckpointBranch{Name: "a", Checkout: v1alpha1.CheckoutNextStart}), client.DryRunAll)
		}, ""},
		"check-out-no-task": {checkpoints, func(c client.Client) error {
			return c.Create(t.Context(), branchedCheckpoint("check-out-no-task", v1alpha1.CheckpointBranch{Name: "a", Checkout: v1alpha1.CheckoutNextStart}), client.DryRunAll)
		}, refused},
		"push-never": {checkpoints, func(c client.Client) error {
			return c.Create(t.Context(), branchedCheckpoint("push-never", v1alpha1.CheckpointBranch{Name: "a"}), client.DryRunAll)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			user := userWith(t, name, test.rights...)
			act := NewWithT(t).Eventually(func() error { return test.act(user) })
			if test.sentence == "" {
				act.Should(Succeed())
			} else {
				act.Should(MatchError(ContainSubstring(test.sentence)))
			}
		})
	}
}

func TestABadBranchIsRefusedWhenItIsApplied(t *testing.T) {
	for sentence, branch := range map[string]v1alpha1.CheckpointBranch{
		"can only be below refs/heads/ or refs/for/": {Name: "refs/tags/v1", Push: v1alpha1.PushOrigin},
		`supported values: "Never", "Origin"`:        {Name: "a", Push: "Always"},
		"approvedCommit":                             {Name: "a", Push: v1alpha1.PushOrigin, ApprovedCommit: "c0ffee"},
		`supported values: "Fail", "ForceWithLease"`: {Name: "a", OnDiverged: "Force"},
		"branches[0].id":                             {Name: "a", ID: "-"},
		`supported values: "Never", "NextStart"`:     {Name: "a", Checkout: "Always"},
		"only a branch can be checked out":           {Name: "refs/for/main", Checkout: v1alpha1.CheckoutNextStart},
	} {
		expectRefused(t, server.Client.Create(t.Context(), branchedCheckpoint("bad-branch", branch), client.DryRunAll), sentence)
	}
	two := branchedCheckpoint("bad-branch", v1alpha1.CheckpointBranch{Name: "a", Checkout: v1alpha1.CheckoutNextStart}, v1alpha1.CheckpointBranch{Name: "b", Checkout: v1alpha1.CheckoutNextStart})
	expectRefused(t, server.Client.Create(t.Context(), two, client.DryRunAll), "set checkout of the other branches to Never")
	for _, branch := range []v1alpha1.CheckpointBranch{
		{Name: "refs/heads/a", Checkout: v1alpha1.CheckoutNextStart}, {Name: "refs/for/main", Checkout: v1alpha1.CheckoutNever},
		{Name: "refs/for/main", Push: v1alpha1.PushOrigin}, {Name: "refs/heads/a", Push: v1alpha1.PushOrigin}, {Name: "refs/tags/v1"},
	} {
		must(t, server.Client.Create(t.Context(), branchedCheckpoint("fine-branch", branch), client.DryRunAll))
	}
}
