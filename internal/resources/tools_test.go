package resources_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
)

func TestAPodGetsTheToolsOfTheSpecAndThoseOfItsRoleWithoutAny(t *testing.T) {
	own := []v1alpha1.AgentTool{"checkpoint", "checkpoints", "history_search", "diff"}
	steering := append(slices.Clone(own), "task_create", "task_list", "task_wait", "task_history", "task_diff",
		"task_resume", "task_rewind", "task_fork", "task_stop", "phase_set")
	publish := &v1alpha1.Publish{Branch: "clew/work"}
	for name, tt := range map[string]struct {
		role        v1alpha1.Role
		publish     *v1alpha1.Publish
		given, want []v1alpha1.AgentTool
	}{
		"a worker's, left out":                          {role: v1alpha1.RoleWorker, want: own},
		"those of a task of an older version, left out": {want: own},
		"a worker's that publishes, left out":           {role: v1alpha1.RoleWorker, publish: publish, want: own},
		"a supervisor's, left out":                      {role: v1alpha1.RoleSupervisor, want: steering},
		"a supervisor's that publishes, left out":       {role: v1alpha1.RoleSupervisor, publish: publish, want: append(slices.Clone(steering), "publish")},
		"none":                       {given: []v1alpha1.AgentTool{}},
		"none of a supervisor":       {role: v1alpha1.RoleSupervisor, publish: publish, given: []v1alpha1.AgentTool{}},
		"one":                        {given: []v1alpha1.AgentTool{"diff"}, want: []v1alpha1.AgentTool{"diff"}},
		"one of a supervisor":        {role: v1alpha1.RoleSupervisor, given: []v1alpha1.AgentTool{"task_list"}, want: []v1alpha1.AgentTool{"task_list"}},
		"a supervisor's of a worker": {role: v1alpha1.RoleWorker, given: []v1alpha1.AgentTool{"diff", "task_create"}, want: []v1alpha1.AgentTool{"diff"}},
		"publish of a supervisor that has nowhere to":   {role: v1alpha1.RoleSupervisor, given: []v1alpha1.AgentTool{"publish", "diff"}, want: []v1alpha1.AgentTool{"diff"}},
		"publish of a supervisor that has somewhere to": {role: v1alpha1.RoleSupervisor, publish: publish, given: []v1alpha1.AgentTool{"publish"}, want: []v1alpha1.AgentTool{"publish"}},
	} {
		t.Run(name, func(t *testing.T) {
			with := task(func(t *v1alpha1.Task) { t.Spec.Role, t.Spec.Publish, t.Spec.Tools = tt.role, tt.publish, tt.given })
			got := config(t, newPod(t, resources.PodRequest{Task: with})).Tools
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("tools (-want +got):\n%s", diff)
			}
		})
	}
}

func TestASupervisorsPodKnowsThePhasesOfItsContract(t *testing.T) {
	own := &v1alpha1.Contract{Name: "port", Phases: []string{"Draft", "Ship"}}
	for name, tt := range map[string]struct {
		role     v1alpha1.Role
		contract *v1alpha1.Contract
		want     []string
	}{
		"its own":        {v1alpha1.RoleSupervisor, own, []string{"Draft", "Ship"}},
		"the usual ones": {v1alpha1.RoleSupervisor, &v1alpha1.Contract{Name: "port"}, v1alpha1.DefaultPhases()},
		"of a worker":    {v1alpha1.RoleWorker, &v1alpha1.Contract{Name: "port"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			with := task(func(t *v1alpha1.Task) { t.Spec.Role, t.Spec.Contract = tt.role, tt.contract })
			if diff := cmp.Diff(tt.want, config(t, newPod(t, resources.PodRequest{Task: with})).Phases); diff != "" {
				t.Errorf("phases (-want +got):\n%s", diff)
			}
		})
	}
}
