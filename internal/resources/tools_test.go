package resources_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
)

func TestAPodGetsTheToolsOfTheSpecAndTheDefaultWithoutAny(t *testing.T) {
	leads := func(t *v1alpha1.Task) { t.Spec.Role = v1alpha1.RoleSupervisor }
	supervisors := []v1alpha1.AgentTool{
		"checkpoint", "checkpoints", "history_search", "diff",
		"task_create", "task_list", "task_wait", "task_history", "task_diff", "task_resume", "task_rewind", "task_fork", "task_stop", "phase_set",
	}
	for name, tt := range map[string]struct {
		change      func(*v1alpha1.Task)
		given, want []v1alpha1.AgentTool
	}{
		"left out":             {nil, nil, []v1alpha1.AgentTool{"checkpoint", "checkpoints", "history_search", "diff"}},
		"none":                 {nil, []v1alpha1.AgentTool{}, nil},
		"one":                  {nil, []v1alpha1.AgentTool{"diff"}, []v1alpha1.AgentTool{"diff"}},
		"a supervisor":         {leads, nil, supervisors},
		"one of a supervisor":  {leads, []v1alpha1.AgentTool{"task_wait"}, []v1alpha1.AgentTool{"task_wait"}},
		"one that may publish": {func(t *v1alpha1.Task) { leads(t); t.Spec.Publish = &v1alpha1.Publish{Branch: "main"} }, nil, append(slices.Clone(supervisors), "publish")},
	} {
		t.Run(name, func(t *testing.T) {
			with := task(func(t *v1alpha1.Task) {
				t.Spec.Tools = tt.given
				if tt.change != nil {
					tt.change(t)
				}
			})
			got := config(t, newPod(t, resources.PodRequest{Task: with})).Tools
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("tools (-want +got):\n%s", diff)
			}
		})
	}
}
