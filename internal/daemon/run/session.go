package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/agenthome"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/start"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// settleWait is how long the agent's session file may lag behind what the agent
// has said, and settlePoll how often that is looked at.
const (
	settleWait = 300 * time.Millisecond
	settlePoll = 20 * time.Millisecond
)

// newParser makes a parser of this attempt's run of the agent.
func (d *daemon) newParser(known *daemonv1.AgentSession) agent.Parser {
	if known == nil {
		state := d.volume.Journal.State()
		known = state.RunningSession()
	}
	options := agent.ParserOptions{Session: known, Run: strconv.FormatInt(d.cfg.Pod.Attempt, 10), Model: d.cfg.Pod.Model, Prices: d.cfg.Pod.Prices}
	plan, err := start.Read(d.cfg.RunDir)
	switch {
	case err == nil:
		options.Prompt, options.Model = d.cfg.Mask.Text(plan.Prompt), plan.Model
	case !errors.Is(err, fs.ErrNotExist):
		d.log.Error(err, "the agent's prompt is not known; it may be recorded twice")
	}
	return d.adapter.NewParser(options)
}

// noteSession keeps the agent's session in the journal, for checkpoints and for
// the next attempt. A session that is to be gone on with counts as the agent's
// when the agent has said something: it may yet refuse it.
func (d *daemon) noteSession() error {
	now := d.recorder.agentState()
	if now.session == nil {
		return nil
	}
	d.noting.Lock()
	defer d.noting.Unlock()
	if proto.Equal(d.noted, now.session) {
		return nil
	}
	state := d.volume.Journal.State()
	if !now.produced && proto.Equal(state.RunningSession(), now.session) {
		return nil
	}
	if !state.SameSession(now.session) {
		err := d.volume.Journal.Update(func(s *journal.State) error { return s.SetAgentSession(now.session) })
		if err != nil {
			return fmt.Errorf("note the agent's session: %w", err)
		}
	}
	d.noted = now.session
	return nil
}

// noteRefusal notes a session that the agent would not go on with: it ended
// with an error of its own before it had said anything.
func (d *daemon) noteRefusal(st status) error {
	state := d.volume.Journal.State()
	s := state.Start
	if st.exit == nil || st.terminating || st.exit.Code < 1 || st.exit.Code > 125 || d.recorder.agentState().produced ||
		s == nil || s.Attempt != d.cfg.Pod.Attempt || s.Memory != daemonapi.MemorySession {
		return nil
	}
	session := state.AgentSession.Message()
	if session == nil {
		return nil
	}
	d.log.Info("the agent did not go on with its session; the next attempt tells it the conversation", "session", session.GetId())
	err := d.volume.Journal.Update(func(s *journal.State) error {
		s.SessionRefused = session.GetId()
		return nil
	})
	if err != nil {
		return err
	}
	return d.taker.Event("AgentSessionRefused",
		fmt.Sprintf("the agent ended with exit code %d without having gone on with its session %s: the next attempt tells it the conversation in its prompt", st.exit.Code, session.GetId()),
		map[string]string{"session": session.GetId()})
}

// settle waits, but not long, until the files of the agent's session hold the
// last result that was recorded: some agents print it first. So what the agent
// knows in a checkpoint is what the conversation says it knows.
func (d *daemon) settle(ctx context.Context) {
	session, call := d.recorder.agentState().session, d.recorder.answered()
	if session == nil || call == "" || !d.settling.CompareAndSwap(false, true) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	go func() {
		defer cancel()
		defer d.settling.Store(false) // reading may outlast the wait
		for ctx.Err() == nil {
			found, err := agenthome.Find(d.adapter, d.cfg.Paths.Home, session.GetId())
			if err == nil && (found.Results == nil || found.Results[call]) {
				return
			}
			select {
			case <-time.After(settlePoll):
			case <-ctx.Done():
			}
		}
	}()
	<-ctx.Done()
}
