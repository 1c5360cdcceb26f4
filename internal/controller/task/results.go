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

const (
	// lastMessages is how many of a child's newest messages are read to find the last one of its agent.
	lastMessages = 10
	// maxUnread is after how many children whose conversations take too long no other one is read: a worker
	// waits for each.
	maxUnread = 3
)

// results reads what the finished children of a supervisor that begins a phase again have said last. One
// of which the conversation cannot be read in time keeps no supervisor from starting.
func (r *Reconciler) results(ctx context.Context, children []v1alpha1.Task) plan.Results {
	results := plan.Results{Known: true, Said: map[string]string{}, Unread: map[string]bool{}}
	for _, child := range slices.Backward(plan.Finished(children)) { // the newest ones first
		if len(results.Unread) >= maxUnread {
			results.Unread[string(child.UID)] = true
			continue
		}
		page, err := r.Store.TaskConversation(ctx, history.ConversationQuery{
			Namespace: child.Namespace, UID: string(child.UID), Last: lastMessages, Limit: lastMessages,
		})
		switch {
		case errors.Is(err, history.ErrNotFound):
			continue // it has said nothing
		case err != nil:
			logf.FromContext(ctx).Info("could not read what a child has said", "child", child.Name, "error", err.Error())
			if errors.Is(err, history.ErrUnavailable) && !errors.Is(err, history.ErrSlow) {
				return plan.Results{}
			}
			results.Unread[string(child.UID)] = true
			continue
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
