package v1alpha1_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func TestABadTemplateOfChildrenIsRefused(t *testing.T) {
	leads := func(template v1alpha1.ChildTemplate) change {
		return spec(func(s *v1alpha1.TaskSpec) {
			s.Role, s.Contract, s.Children = v1alpha1.RoleSupervisor, &v1alpha1.Contract{Name: "port"}, &v1alpha1.Children{Template: &template}
		})
	}
	container := func(c v1alpha1.ChildContainer) v1alpha1.ChildTemplate {
		return v1alpha1.ChildTemplate{Container: &c}
	}
	for name, c := range map[string]struct {
		template v1alpha1.ChildTemplate
		sentence string
	}{
		"a supervisor's tool":       {v1alpha1.ChildTemplate{Tools: []v1alpha1.AgentTool{"diff", "task_fork"}}, "children are workers, and the tools that begin with task_, phase_set and publish are a supervisor's"},
		"children that are deleted": {v1alpha1.ChildTemplate{OnFinish: &v1alpha1.OnFinish{Action: v1alpha1.FinishDelete}}, "children are released when they have finished, and not deleted"},
		"an agent of no kind":       {v1alpha1.ChildTemplate{Agent: &v1alpha1.ChildAgent{}}, "set type, model or both in agent"},
		"a model of any command":    {v1alpha1.ChildTemplate{Agent: &v1alpha1.ChildAgent{Type: v1alpha1.AgentExec, Model: "gpt-5"}}, "an agent of type Exec is any command"},
		"an image with a space":     {container(v1alpha1.ChildContainer{Image: "a b"}), "image must not contain spaces"},
		"a variable of Clew's":      {container(v1alpha1.ChildContainer{Env: []corev1.EnvVar{{Name: "CLEW_BIN", Value: "x"}}}), "cannot be named HOME or begin with CLEW_"},
		"65 words":                  {container(v1alpha1.ChildContainer{Command: slices.Repeat([]string{"x"}, 65)}), "must have at most 64 items"},
		"a volume of no size":       {v1alpha1.ChildTemplate{Workspace: &v1alpha1.ChildWorkspace{Size: ptr.To(resource.MustParse("0"))}}, "size must be more than zero"},
		"no storage class":          {v1alpha1.ChildTemplate{Workspace: &v1alpha1.ChildWorkspace{StorageClassName: ptr.To("")}}, "leave storageClassName out"},
		"a deadline of no time":     {v1alpha1.ChildTemplate{DeadlineSeconds: new(int64)}, "deadlineSeconds must be from 1 to 31536000"},
		"too urgent":                {v1alpha1.ChildTemplate{Priority: ptr.To[int32](1001)}, "should be less than or equal to 1000"},
		"a code retries and fails": {v1alpha1.ChildTemplate{
			RetryOn: &v1alpha1.FailureMatcher{ExitCodes: []int32{3}}, FailOn: &v1alpha1.FailureMatcher{ExitCodes: []int32{3}},
		}, "retryOn and failOn have an exit code or a reason in common"},
	} {
		t.Run(name, func(t *testing.T) {
			expectRefused(t, create(builders.Task("bad-children", leads(c.template))), c.sentence)
		})
	}
	if err := create(builders.Task("good-children", leads(v1alpha1.ChildTemplate{
		Agent:     &v1alpha1.ChildAgent{Type: v1alpha1.AgentCodex, Model: "gpt-5"},
		Container: &v1alpha1.ChildContainer{Image: "agents.example.com/codex:1", Args: []string{"--fast"}, Env: []corev1.EnvVar{{Name: "MODE", Value: "fast"}}},
		Workspace: &v1alpha1.ChildWorkspace{Size: ptr.To(resource.MustParse("1Gi"))}, Tools: []v1alpha1.AgentTool{},
		CheckpointPolicy: &v1alpha1.CheckpointPolicy{}, BackoffLimit: new(int32), DeadlineSeconds: ptr.To[int64](60), Priority: ptr.To[int32](-5),
		OnFinish: &v1alpha1.OnFinish{AfterSeconds: 60},
	}))); err != nil {
		t.Errorf("a good template is refused: %v", err)
	}
}
