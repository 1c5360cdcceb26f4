package prepare

import (
	"context"

	"github.com/clew-dev/clew/internal/agent"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// firstPrompt records the task's prompt as its first record.
func (p *preparer) firstPrompt(ctx context.Context) error {
	// The spool may begin after records that are lost everywhere.
	if p.begun.GetLastSequence() > 0 || p.spool.First() <= p.spool.Last() || p.cfg.Prompt == "" {
		return nil
	}
	inherited := false
	if s := p.cfg.Pod.Source; s != nil && s.IncludeConversation {
		var err error
		if inherited, err = p.inherits(ctx, p.cfg.Prompt); err != nil {
			return err
		}
	}
	if inherited {
		return nil
	}
	return p.userMessage(p.cfg.Prompt)
}

// inherits reports whether the conversation already contains exactly this user message.
func (p *preparer) inherits(ctx context.Context, prompt string) (found bool, err error) {
	prompt = p.text(prompt)
	err = p.retry(ctx, func() error {
		found = false
		return wrapPlace(placeServer, p.cfg.Server.Conversation(ctx, func(e *daemonv1.ConversationEntry) error {
			m := e.GetMessage()
			found = found || m.GetRole() == daemonv1.Role_ROLE_USER && m.GetText() == prompt
			return nil
		}))
	})
	return found, err
}

func (p *preparer) userMessage(text string) error {
	return p.append(&daemonv1.Message{Role: daemonv1.Role_ROLE_USER, Text: p.text(text)})
}

// text returns s as it is recorded: valid UTF-8 and masked.
func (p *preparer) text(s string) string { return p.cfg.Mask.Text(agent.Text([]byte(s))) }
