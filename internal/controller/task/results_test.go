package task

import (
	"testing"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

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
