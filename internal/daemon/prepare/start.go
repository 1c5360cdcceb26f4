package prepare

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/agent/render"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/launchplan"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// typed reports whether the agent that starts is of a kind that Clew starts
// itself: an agent of type Exec reads the conversation and its prompt alone.
func (p *preparer) typed() bool {
	t := p.cfg.Pod.AgentType
	return t != "" && t != v1alpha1.AgentExec && !p.cfg.Pod.PrepareOnly
}

// limits bound the conversation that is told in a prompt.
func (p *preparer) limits() daemonapi.ContextLimits {
	if op := p.cfg.Pod.Operation; op != nil && op.Context != nil {
		return *op.Context
	}
	return p.cfg.Pod.Context
}

// planStart decides what the agent is started with, and notes it in the journal.
func (p *preparer) planStart(ctx context.Context) error {
	if !p.typed() {
		return nil
	}
	known, err := p.remembered(ctx)
	if err != nil {
		return err
	}
	m := known.decide()
	p.plan = &launchplan.Plan{AgentType: p.cfg.Pod.AgentType, Memory: m.kind, Session: m.id, Model: p.cfg.Pod.Model, Prompt: m.prompt}
	p.result.Memory, p.result.MemoryMessage = m.kind, cut(m.message, maxMemoryMessage)
	p.log.Info("the agent's memory", "memory", m.kind, "session", m.id, "why", m.message, "promptBytes", len(m.prompt))
	if err := p.writeFiles(); err != nil {
		return err
	}
	return p.journal.Update(func(s *journal.State) error {
		s.Start = &journal.Start{Attempt: p.cfg.Pod.Attempt, Memory: m.kind, Position: known.head, Tokens: append([]agent.Tokens{}, m.tokens...)}
		s.AgentSession = m.session
		if s.AgentSession != nil && m.kind != v1alpha1.AgentMemorySession {
			s.AgentSession.Attempt = 0 // this attempt begins one of its own
		}
		return nil
	})
}

// maxMemoryMessage leaves room for the rest of the result.
const maxMemoryMessage = 512

// remembered gathers what is known, and says to an agent that was interrupted
// that it is to go on: once in an attempt.
func (p *preparer) remembered(ctx context.Context) (remembered, error) {
	h, err := p.readHistory(ctx)
	if err != nil {
		return remembered{}, err
	}
	told, pending, head := h.end()
	if len(pending) == 0 && len(told) > 0 {
		if err := p.once("go-on/"+p.podKey(), func() error { return p.userMessage(goOn) }); err != nil {
			return remembered{}, err
		}
		if err := p.drain(ctx); err != nil {
			return remembered{}, err
		}
		if h, err = p.readHistory(ctx); err != nil {
			return remembered{}, err
		}
		told, pending, head = h.end()
	}
	state, limits := p.journal.State(), p.limits()
	return remembered{
		agentType: p.cfg.Pod.AgentType, session: state.AgentSession, refused: state.SessionRefused,
		find: func(id string) (agent.Session, error) { return agent.FindSession(p.adapter, p.cfg.Paths.Home, id) },
		told: told, pending: pending, head: head,
		render: renderer{
			conversation: func(e []*daemonv1.ConversationEntry) string { return render.Conversation(e, limits) },
			missing:      func(e []*daemonv1.ConversationEntry) string { return render.Missing(e, limits) },
		},
	}, nil
}

// writeFiles writes the settings that the agent reads.
func (p *preparer) writeFiles() error {
	dir := filepath.Join(p.cfg.RunDir, launchplan.FilesDir)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("write the agent's settings: %w", err)
	}
	hook := []string{filepath.Join(p.cfg.RunDir, shimFile), "hook"}
	for name, content := range p.adapter.Files(agent.FilesRequest{Hook: hook, Dir: dir}) {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("write the agent's settings: %w", err)
		}
		err := replace(path, 0o644, func(w io.Writer) error {
			_, err := w.Write(content)
			return err
		})
		if err != nil {
			return fmt.Errorf("write the agent's settings: %w", err)
		}
	}
	return nil
}

// writeStart writes the plan, when everything else is there.
func (p *preparer) writeStart(context.Context) error {
	if p.plan == nil {
		return nil
	}
	return launchplan.Write(p.cfg.RunDir, *p.plan)
}
