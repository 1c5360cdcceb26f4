package task

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// grantedBetween is a history whose grant to a namespace is carried out after the first question
// about it.
type grantedBetween struct {
	Store
	asked int
}

func (g *grantedBetween) EarlierNamespace(context.Context, string, string) (bool, error) {
	g.asked++
	return g.asked == 1, nil
}

func (g *grantedBetween) Adoption(context.Context, history.Task) (found history.Adoption, err error) {
	g.asked++
	if g.asked > 1 {
		found.Former = "former"
	}
	return found, nil
}

func TestAGrantThatIsCarriedOutBetweenTwoQuestionsIsSeen(t *testing.T) {
	r := &Reconciler{Store: &grantedBetween{}}
	task := &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "work", UID: "new"}, Spec: v1alpha1.TaskSpec{Adopt: v1alpha1.AdoptLatest}}
	found := r.adoption(t.Context(), task)
	if !found.Known || found.Former == "" && !found.Elsewhere {
		t.Errorf("the task would start anew: %+v", found)
	}
}
