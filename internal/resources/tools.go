package resources

import (
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// ToolsOf returns those of Clew's tools that the agent gets: those of the spec or, if it names none, all
// that the task's role gives it. A tool that the task cannot use is never among them, whatever an API
// server of an older version has accepted.
func ToolsOf(task *v1alpha1.Task) []v1alpha1.AgentTool {
	given := task.Spec.Tools
	if given == nil {
		given = slices.Concat(v1alpha1.DefaultTools(), v1alpha1.SupervisorTools())
	}
	return slices.DeleteFunc(slices.Clone(given), func(t v1alpha1.AgentTool) bool {
		return t == v1alpha1.ToolPublish && task.Spec.Publish == nil ||
			task.Spec.Role != v1alpha1.RoleSupervisor && slices.Contains(v1alpha1.SupervisorTools(), t)
	})
}
