package prepare

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/agent/render"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/launchplan"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/durable"
)

// typed reports whether Clew itself starts the agent: an agent of type Exec reads the
// conversation and its prompt on its own.
func (p *preparer) typed() bool {
	t := p.cfg.Pod.AgentType
	return t != "" && t != v1alpha1.AgentExec && !p.cfg.Pod.PrepareOnly
}

// limits returns the bounds of the conversation that is rendered in a prompt.
func (p *preparer) limits() daemonapi.ContextLimits {
	if op := p.cfg.Pod.Operation; op != nil && op.Context != nil {
		return *op.Context
	}
	return p.cfg.Pod.Context
}

// planStart decides how the agent is started and journals it.
func (p *preparer) planStart(ctx context.Context) error {
	if !p.typed() {
		return nil
	}
	known, err := p.gatherKnowledge(ctx)
	if err != nil {
		return err
	}
	m := known.decide()
	p.plan = &launchplan.Plan{AgentType: p.cfg.Pod.AgentType, Memory: m.kind, Session: m.id, Model: p.cfg.Pod.Model, Tools: p.toolServer(), HookSeconds: hookSeconds(p.cfg.Pod.Policy), Prompt: m.prompt}
	p.result.Memory, p.result.MemoryMessage = m.kind, truncate(m.message, maxMemoryMessage)
	p.log.Info("the agent's memory", "memory", m.kind, "session", m.id, "why", m.message, "promptBytes", len(m.prompt))
	if err := p.writeFiles(); err != nil {
		return err
	}
	return p.journal.Update(func(s *journal.State) error {
		s.Start = &journal.Start{Attempt: p.cfg.Pod.Attempt, Memory: m.kind, Position: known.head, Tokens: append([]agent.Tokens{}, m.tokens...)}
		s.AgentSession = m.session
		if s.AgentSession != nil && m.kind != v1alpha1.AgentMemorySession {
			s.AgentSession.Attempt = 0 // this attempt begins a session of its own
		}
		return nil
	})
}

// maxMemoryMessage, in bytes, leaves room for the rest of the result.
const maxMemoryMessage = 512

// gatherKnowledge gathers what is known of the session and the conversation. If no prompt
// is pending, it records one that tells the interrupted agent to continue, once per
// attempt.
func (p *preparer) gatherKnowledge(ctx context.Context) (knowledge, error) {
	h, err := p.readHistory(ctx)
	if err != nil {
		return knowledge{}, err
	}
	past, pending, head := h.split()
	if len(pending) == 0 && len(past) > 0 {
		if err := p.once("go-on/"+p.podKey(), func() error { return p.userMessage(continuePrompt) }); err != nil {
			return knowledge{}, err
		}
		if err := p.drain(ctx); err != nil {
			return knowledge{}, err
		}
		if h, err = p.readHistory(ctx); err != nil {
			return knowledge{}, err
		}
		past, pending, head = h.split()
	}
	state, limits := p.journal.State(), p.limits()
	return knowledge{
		agentType: p.cfg.Pod.AgentType, session: state.AgentSession, refused: state.SessionRefused,
		find: func(id string) (agent.Session, error) { return agent.FindSession(p.adapter, p.cfg.Paths.Home, id) },
		past: past, pending: pending, head: head,
		render: renderer{
			conversation: func(e []*daemonv1.ConversationEntry) string { return render.Conversation(e, limits) },
			missing:      func(e []*daemonv1.ConversationEntry) string { return render.Missing(e, limits) },
		},
	}, nil
}

// writeFiles writes the settings files of the agent's adapter.
func (p *preparer) writeFiles() error {
	dir := filepath.Join(p.cfg.RunDir, launchplan.FilesDir)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("write the agent's settings: %w", err)
	}
	request := agent.FilesRequest{Hook: p.hook(), HookSeconds: hookSeconds(p.cfg.Pod.Policy), Tools: p.toolServer(), Dir: dir}
	for name, content := range p.adapter.Files(request) {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("write the agent's settings: %w", err)
		}
		if err := durable.Write(path, content, 0o644); err != nil {
			return fmt.Errorf("write the agent's settings: %w", err)
		}
	}
	return nil
}

// hook returns the program that the agent runs before each tool. If the policy has calls refused or
// asks about them, it waits for the answer, and refuses the tool by itself before the agent runs it
// unanswered.
func (p *preparer) hook() []string {
	words := []string{filepath.Join(p.cfg.RunDir, shimFile), "hook"}
	if policy := p.cfg.Pod.Policy; policy.Decides() {
		words = append(words, "--answer-needed", "--timeout="+(policy.ApprovalDeadline()+answerGrace).String())
	}
	return words
}

// answerGrace is how much longer than a call waits for a person its hook waits for the answer, and
// hookGrace how much longer than that the agent waits for its hook.
const (
	answerGrace = 10 * time.Minute
	hookGrace   = time.Minute
)

// hookSeconds is how long the agent waits for its hook; 0 for as long as it takes a checkpoint.
func hookSeconds(policy daemonapi.Policy) int {
	if !policy.Decides() {
		return 0
	}
	return int((policy.ApprovalDeadline() + answerGrace + hookGrace) / time.Second)
}

// toolServer returns the program that serves Clew's tools to the agent; nil if it gets none.
func (p *preparer) toolServer() []string {
	if len(p.cfg.Pod.Tools) == 0 {
		return nil
	}
	return []string{filepath.Join(p.cfg.RunDir, shimFile), "tools"}
}

// writeStart writes the launch plan, once everything it names exists.
func (p *preparer) writeStart(context.Context) error {
	if p.plan == nil {
		return nil
	}
	return launchplan.Write(p.cfg.RunDir, *p.plan)
}
