package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/agentstate"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/launchplan"
	"github.com/clew-dev/clew/internal/daemon/socket"
)

// sessionWait is how long the agent's session file may lag behind what the agent
// has said, and sessionPoll how often that is looked at.
const (
	sessionWait = 300 * time.Millisecond
	sessionPoll = 20 * time.Millisecond
)

// heldUnknown stands for a number of results that is not known.
const heldUnknown = math.MinInt

// parsers make parsers of this attempt's run of the agent.
func parsers(cfg Config, adapter agent.Adapter, j *journal.Journal) func(agentstate.State) agent.Parser {
	return func(state agentstate.State) agent.Parser {
		known := state.Session
		if known == nil {
			journalled := j.State()
			known = journalled.RunningSession()
		}
		options := agent.ParserOptions{Session: known, Outcome: state.Outcome, Run: strconv.FormatInt(cfg.Pod.Attempt, 10), Model: cfg.Pod.Model, Prices: cfg.Pod.Prices}
		plan, err := launchplan.Read(cfg.RunDir)
		switch {
		case err == nil:
			options.Prompt, options.Model = cfg.Mask.Text(plan.Prompt), plan.Model
		case !errors.Is(err, fs.ErrNotExist):
			cfg.Log.Error(err, "the agent's prompt is not known; it may be recorded twice")
		}
		return adapter.NewParser(options)
	}
}

// noteSession keeps the agent's session in the journal, for checkpoints and for
// the next attempt. A resumed session counts as the agent's only once the
// agent has said something: it may yet refuse it.
func (d *daemon) noteSession() error {
	now := d.recorder.State()
	if now.Session == nil {
		return nil
	}
	d.noting.Lock()
	defer d.noting.Unlock()
	if proto.Equal(d.noted, now.Session) {
		return nil
	}
	state := d.volume.Journal.State()
	if !now.Produced && proto.Equal(state.RunningSession(), now.Session) {
		return nil
	}
	if !state.SameSession(now.Session) {
		err := d.volume.Journal.Update(func(s *journal.State) error { return s.SetAgentSession(now.Session) })
		if err != nil {
			return fmt.Errorf("note the agent's session: %w", err)
		}
	}
	d.noted = now.Session
	return nil
}

// noteRefusal notes a session that the agent does not have: it says so, or its
// program ended before it printed any event. An error of the model's API is no
// refusal: the session is as good as before.
func (d *daemon) noteRefusal(st socket.Status) error {
	state := d.volume.Journal.State()
	s := state.Start
	if st.Exit == nil || st.Terminating || st.Exit.Code < 1 || st.Exit.Code > 125 || s == nil ||
		s.Attempt != d.cfg.Pod.Attempt || s.Memory != v1alpha1.AgentMemorySession || !d.sessionRefused(st) {
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
	return d.taker.Event(v1alpha1.EventAgentSessionRefused,
		fmt.Sprintf("the agent ended with exit code %d without having gone on with its session %s: the next attempt tells it the conversation in its prompt", st.Exit.Code, session.GetId()),
		map[string]string{"session": session.GetId()})
}

// sessionRefused reports whether the agent refused the session it was to go on with.
func (d *daemon) sessionRefused(st socket.Status) bool {
	known := d.recorder.State()
	if known.Produced {
		return false
	}
	switch d.failureOf(st).Cause {
	case agent.CauseSessionUnknown:
		return true
	case agent.CauseUnknown:
		return known.Outcome == (agent.Outcome{})
	}
	return false
}

// awaitSession waits, but not long, until the files of the agent's session hold the
// last result that was recorded: some agents print it first. So what the agent
// knows in a checkpoint is what the conversation says it knows.
func (d *daemon) awaitSession(ctx context.Context) {
	session := d.recorder.State().Session
	call, results := d.recorder.Answered()
	if session == nil || call == "" || !d.awaitingSession.CompareAndSwap(false, true) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sessionWait)
	defer cancel()
	go func() {
		defer cancel()
		defer d.awaitingSession.Store(false) // reading may outlast the wait
		for ctx.Err() == nil {
			found, err := agent.FindSession(d.adapter, d.cfg.Paths.Home, session.GetId())
			if err == nil && d.holds(found, call, results) {
				return
			}
			select {
			case <-time.After(sessionPoll):
			case <-ctx.Done():
			}
		}
	}()
	<-ctx.Done()
}

// holds reports whether a session has the last result, or as many as there
// must be where it tells no ids. One that tells neither is not waited for.
func (d *daemon) holds(s agent.Session, call string, results int) bool {
	if s.Results != nil {
		return s.Results[call]
	}
	return s.ResultCount < 0 || d.held == heldUnknown || s.ResultCount >= d.held+results
}

// heldBefore is how many results the session's files hold, before the agent
// starts, that the recorder has not counted. It is not known once the agent runs.
func (d *daemon) heldBefore(state journal.State) int {
	if state.Session.BelongsTo(d.cfg.Pod.Attempt, d.cfg.Pod.PodUID) {
		return heldUnknown
	}
	_, counted := d.recorder.Answered()
	session := state.RunningSession()
	if session == nil {
		return -counted
	}
	found, err := agent.FindSession(d.adapter, d.cfg.Paths.Home, session.GetId())
	if err != nil || found.ResultCount < 0 {
		return heldUnknown
	}
	return found.ResultCount - counted
}
