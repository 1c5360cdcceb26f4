package task

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// said is a store with conversations, or errors in place of them, by the tasks' UIDs.
type said struct {
	Store
	errs map[string]error
	read int
}

func (s *said) TaskConversation(_ context.Context, query history.ConversationQuery) (history.EntryPage, error) {
	s.read++
	return history.EntryPage{Entries: []history.Entry{{Message: conversation.Message{Role: conversation.RoleAssistant, Text: "I am " + query.UID}}}}, s.errs[query.UID]
}

func TestOneChildKeepsNoSupervisorFromStarting(t *testing.T) {
	const children = 10
	slow := fmt.Errorf("%w: locked", history.ErrSlow)
	for name, c := range map[string]struct {
		errs                map[string]error
		known               bool
		said, unread, reads int
	}{
		"all can be read":           {nil, true, children, 0, children},
		"one has said nothing":      {map[string]error{"uid-3": history.ErrNotFound}, true, children - 1, 0, children},
		"one takes too long":        {map[string]error{"uid-3": slow}, true, children - 1, 1, children},
		"one is damaged":            {map[string]error{"uid-3": errors.New("a message is missing")}, true, children - 1, 1, children},
		"three of many, the newest": {map[string]error{"uid-9": slow, "uid-8": slow, "uid-6": slow}, true, 1, children - 1, 4},
		"the store cannot be asked": {map[string]error{"uid-9": history.ErrUnavailable}, false, 0, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var all []v1alpha1.Task
			for n := range children {
				child := builders.Task(fmt.Sprint("child-", n), builders.WithUID(fmt.Sprint("uid-", n)))
				child.CreationTimestamp = metav1.NewTime(time.Unix(int64(n), 0))
				child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.TaskSucceeded, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCompleted}}
				all = append(all, *child)
			}
			store := &said{errs: c.errs}
			r := &Reconciler{Store: store}
			got := r.results(t.Context(), all)
			if got.Known != c.known || len(got.Said) != c.said || len(got.Unread) != c.unread || store.read != c.reads {
				t.Errorf("known %t, said %v, unread %v, read %d", got.Known, got.Said, got.Unread, store.read)
			}
		})
	}
}

func TestWhatAChildHasSaidLast(t *testing.T) {
	said := func(role conversation.Role, text string) history.Entry {
		return history.Entry{Message: conversation.Message{Role: role, Text: text}}
	}
	for name, c := range map[string]struct {
		entries []history.Entry
		want    string
	}{
		"nothing":                       {nil, ""},
		"its last text":                 {[]history.Entry{said(conversation.RoleAssistant, "first"), said(conversation.RoleAssistant, "last"), said(conversation.RoleUser, "go on")}, "last"},
		"and not that of a tool":        {[]history.Entry{said(conversation.RoleAssistant, "it works"), said(conversation.RoleTool, "ok")}, "it works"},
		"a call has no text":            {[]history.Entry{said(conversation.RoleAssistant, "I test it."), said(conversation.RoleAssistant, "")}, "I test it."},
		"what a plain program printed":  {[]history.Entry{said(conversation.RoleOutput, "step 1"), said(conversation.RoleOutput, "done")}, "done"},
		"an agent's text before output": {[]history.Entry{said(conversation.RoleAssistant, "fixed"), said(conversation.RoleOutput, "bye")}, "fixed"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := lastSaid(c.entries); got != c.want {
				t.Errorf("it is %q, want %q", got, c.want)
			}
		})
	}
}
