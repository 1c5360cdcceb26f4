package v1alpha1_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/apiserver"
	"github.com/clew-dev/clew/internal/testing/builders"
)

var server *apiserver.Server

func TestMain(m *testing.M) { apiserver.Main(m, &server) }

type change = builders.TaskOption

func spec(f func(*v1alpha1.TaskSpec)) change {
	return func(t *v1alpha1.Task) { f(&t.Spec) }
}

func ref(r string) change { return spec(func(s *v1alpha1.TaskSpec) { s.Repository.Ref = r }) }

func url(u string) change { return spec(func(s *v1alpha1.TaskSpec) { s.Repository.URL = u }) }

// bySSH is url with a Secret.
func bySSH(u string) change {
	return spec(func(s *v1alpha1.TaskSpec) {
		s.Repository.URL, s.Repository.CredentialsSecretRef = u, &v1alpha1.NameReference{Name: "git"}
	})
}

func typed(s *v1alpha1.TaskSpec) { s.Agent.Type = v1alpha1.AgentClaudeCode }

func model(name string) change {
	return spec(func(s *v1alpha1.TaskSpec) { typed(s); s.Agent.Model = name })
}

func risky(tool, input string) change {
	return spec(func(s *v1alpha1.TaskSpec) {
		s.CheckpointPolicy.BeforeRiskyTools = []v1alpha1.RiskyToolPattern{{Tool: tool, Input: input}}
	})
}

// rule is a rule about a tool.
func rule(tool string, action v1alpha1.RiskyToolAction, message string) change {
	return spec(func(s *v1alpha1.TaskSpec) {
		s.CheckpointPolicy.BeforeRiskyTools = []v1alpha1.RiskyToolPattern{{Tool: tool, Action: action, Message: message}}
	})
}

func decisions(list ...v1alpha1.Decision) change {
	return spec(func(s *v1alpha1.TaskSpec) { s.Decisions = list })
}

func manyDecisions(n int) (list []v1alpha1.Decision) {
	for i := range n {
		list = append(list, v1alpha1.Decision{RequestID: fmt.Sprintf("1-%d", i), Answer: v1alpha1.AnswerDeny})
	}
	return list
}

func snapshotEvery(n int32) change {
	return spec(func(s *v1alpha1.TaskSpec) { s.Conversation.SnapshotEveryMessages = &n })
}

func limits(l v1alpha1.ContextLimits) change {
	return spec(func(s *v1alpha1.TaskSpec) { s.Conversation.Context = l })
}

// create creates the task as a dry run.
func create(task *v1alpha1.Task) error {
	return server.Client.Create(context.Background(), task, client.DryRunAll)
}

// created creates the task and returns it.
func created(t *testing.T, task *v1alpha1.Task) *v1alpha1.Task {
	t.Helper()
	if err := server.Client.Create(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	return task
}

// setSucceeded sets the condition Succeeded of the task.
func setSucceeded(t *testing.T, task *v1alpha1.Task, status metav1.ConditionStatus, reason string) {
	t.Helper()
	task.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.TaskSucceeded, Status: status, Reason: reason, LastTransitionTime: metav1.Now(),
	}}
	if err := server.Client.Status().Update(t.Context(), task); err != nil {
		t.Fatal(err)
	}
}

// expectRefused fails unless err is a refusal with this sentence.
func expectRefused(t *testing.T, err error, sentence string) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("accepted; wanted %q", sentence)
	case !strings.Contains(err.Error(), sentence):
		t.Errorf("refused with\n  %q\nwanted\n  %q", err, sentence)
	}
}

func slug(s string) string {
	return strings.ToLower(strings.NewReplacer(" ", "-", ",", "").Replace(s))
}
