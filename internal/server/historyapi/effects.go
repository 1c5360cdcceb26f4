package historyapi

import (
	"fmt"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// hideOutcomes leaves out what has become of tasks that calls of tools were about, unless the caller may
// list the tasks of the namespace: who may read one conversation learns nothing else of other tasks.
func (a *api) hideOutcomes(c *call, entries []history.Entry) error {
	told := false
	for _, e := range entries {
		told = told || len(e.Effects) > 0
	}
	if !told {
		return nil
	}
	listing := Access{Verb: "list", Resource: resourceTaskHistories, Namespace: c.access.Namespace}
	may, _, err := a.Authorizer.Authorize(c.Context(), c.caller, listing)
	if err != nil {
		return fmt.Errorf("%w: check the permissions of %s: %w", errAuthorizer, c.caller.GetName(), err)
	}
	for _, e := range entries {
		for i := range e.Effects {
			if !may {
				e.Effects[i].State = ""
			}
		}
	}
	return nil
}

// effectOperation returns the operation of a call. One that asked again for a task has made none.
func effectOperation(e history.CallEffect) string {
	if e.Repeated {
		return historyv1alpha1.EffectRepeated
	}
	return operationOf(e.Tool)
}

// operationOf returns the operation of a tool; the tool's own name if it is of another version.
func operationOf(tool string) string {
	switch v1alpha1.AgentTool(tool) {
	case v1alpha1.ToolTaskCreate:
		return historyv1alpha1.EffectCreated
	case v1alpha1.ToolTaskFork:
		return historyv1alpha1.EffectForked
	case v1alpha1.ToolTaskResume:
		return historyv1alpha1.EffectResumed
	case v1alpha1.ToolTaskRewind:
		return historyv1alpha1.EffectRewound
	case v1alpha1.ToolTaskStop:
		return historyv1alpha1.EffectStopped
	case v1alpha1.ToolPhaseSet:
		return historyv1alpha1.EffectPhaseSet
	case v1alpha1.ToolPublish:
		return historyv1alpha1.EffectPublished
	}
	return tool
}

func effectsOf(effects []history.CallEffect) (found []historyv1alpha1.Effect) {
	for _, e := range effects {
		found = append(found, historyv1alpha1.Effect{
			Operation: effectOperation(e), Name: e.Task, UID: e.UID, Phase: e.Phase, Checkpoint: e.Checkpoint,
			Outcome: e.State, TakenBack: e.TakenBack,
		})
	}
	return found
}

// madeByOf returns nil for a task that no call has made.
func madeByOf(by *history.MadeBy) *historyv1alpha1.MadeBy {
	if by == nil {
		return nil
	}
	return &historyv1alpha1.MadeBy{
		Name: by.Task.Name, UID: by.Task.UID, Operation: operationOf(by.Tool), Phase: by.Phase,
		Branch: by.Branch, Position: by.Position, TakenBack: by.TakenBack,
	}
}
