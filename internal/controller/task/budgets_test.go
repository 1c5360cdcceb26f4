package task

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/fakehistory"
)

// cached is a cache with one Task.
type cached struct {
	empty
	task v1alpha1.Task
}

func (c cached) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*v1alpha1.TaskList).Items = []v1alpha1.Task{c.task}
	return nil
}

// A supervisor is resumed by the change that raises the budget of its contract. By the budget that the cache still
// has, the resume would be refused for good.
func TestTheBudgetOfAContractIsThatOfTheSupervisorThatIsDecidedOn(t *testing.T) {
	lead := func(calls int64) v1alpha1.Task {
		task := v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "lead", UID: "uid"}}
		task.Spec.Role = v1alpha1.RoleSupervisor
		task.Spec.Contract = &v1alpha1.Contract{Name: "port", Budget: &v1alpha1.Budget{ToolCalls: ptr.To(calls)}}
		return task
	}
	r := &Reconciler{Store: fakehistory.New(), Client: cached{task: lead(10)}}
	live := lead(20)
	shared, err := r.observeBudgets(t.Context(), &live, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(shared.Budgets) != 1 || shared.Budgets[0].Limit.ToolCalls != 20 {
		t.Errorf("the budgets are %+v, want 20 tool calls", shared.Budgets)
	}
}
