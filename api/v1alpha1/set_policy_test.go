package v1alpha1_test

import (
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// TestWhoMayTakeASet: a set stops the agents of a supervisor and of its children, so whoever could not change
// the supervisor must not request one.
func TestWhoMayTakeASet(t *testing.T) {
	const clew = "clew.dev"
	create := right(clew, "create", "checkpoints")
	of := func(scope v1alpha1.CheckpointScope, partOf *v1alpha1.CheckpointSetRef) v1alpha1.CheckpointSpec {
		return v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "lead"}, Scope: scope, PartOf: partOf}
	}
	for name, test := range map[string]struct {
		rights   []rbacv1.PolicyRule
		spec     v1alpha1.CheckpointSpec
		sentence string
	}{
		"set-all":        {[]rbacv1.PolicyRule{create, right(clew, "patch", "tasks", "lead")}, of(v1alpha1.CheckpointOfContract, nil), ""},
		"set-no-task":    {[]rbacv1.PolicyRule{create}, of(v1alpha1.CheckpointOfContract, nil), "you need the right to patch that Task"},
		"set-other-task": {[]rbacv1.PolicyRule{create, right(clew, "patch", "tasks", "other")}, of(v1alpha1.CheckpointOfContract, nil), "you need the right to patch that Task"},
		"set-of-one":     {[]rbacv1.PolicyRule{create}, of(v1alpha1.CheckpointOfTask, nil), ""},
		"set-part":       {[]rbacv1.PolicyRule{create, right(clew, "patch", "tasks")}, of("", &v1alpha1.CheckpointSetRef{Name: "a", UID: "b"}), "partOf is set by Clew alone"},
	} {
		t.Run(name, func(t *testing.T) {
			user := userWith(t, name, test.rights...)
			act := NewWithT(t).Eventually(func() error {
				return user.Create(t.Context(), &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: test.spec}, client.DryRunAll)
			})
			if test.sentence == "" {
				act.Should(Succeed())
			} else {
				act.Should(MatchError(ContainSubstring(test.sentence)))
			}
		})
	}
}
