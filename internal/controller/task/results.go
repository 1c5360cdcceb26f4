package task

import (
	"context"
	"errors"
	"slices"
	"strings"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
)

// lastMessages is how many of a child's newest messages are read to find the last one of its agent.
const lastMessages = 10

// results reads what the finished children of a supervisor that begins a phase again have said last. It
// reads nothing for any other task.
func (r *Reconciler) results(ctx context.Context, task *v1alpha1.Task, children []v1alpha1.Task) plan.Results {
	if !plan.RestartsPhase(task) {
		return plan.Results{}
	}
	results := plan.Results{Known: true, Said: map[string]string{}}
	for _, child := range plan.Finished(children) {
		page, err := r.Store.TaskConversation(ctx, history.ConversationQuery{
			Namespace: child.Namespace, UID: string(child.UID), Last: lastMessages, Limit: lastMessages,
		})
		switch {
		case errors.Is(err, history.ErrNotFound):
			continue // it has said nothing
		case err != nil:
			logf.FromContext(ctx).Info("could not read what a child has said", "child", child.Name, "error", err.Error())
			return plan.Results{}
		}
		if said := lastSaid(page.Entries); said != "" {
			results.Said[string(child.UID)] = said
		}
	}
	return results
}

// lastSaid returns the last text of the agent among messages, or the last output of one that is a plain
// program; "" if there is none.
func lastSaid(entries []history.Entry) string {
	for _, role := range []conversation.Role{conversation.RoleAssistant, conversation.RoleOutput} {
		for _, e := range slices.Backward(entries) {
			if text := strings.TrimSpace(e.Message.Text); e.Message.Role == role && text != "" {
				return text
			}
		}
	}
	return ""
}
