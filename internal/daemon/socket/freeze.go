package socket

import (
	"context"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// freezeTimeout bounds how long the agent may take to stop for a checkpoint.
const freezeTimeout = 3 * time.Second

// Freeze is one request to keep the agent stopped; the agent continues when all of them
// have ended. The consistency of a checkpoint is read from its Freeze after all files
// have been read.
type Freeze struct {
	s        *Server
	c        *connection // nil if there was no agent to stop
	id       int64
	begin    time.Time
	answered chan struct{} // closed when the shim reports the agent as stopped

	// Guarded by s.mu.
	stopped bool // the shim has reported that the agent is stopped
	running bool // but a process of it is not
	thawed  bool // the agent continued before Thaw
}

// Freeze stops the agent and returns when its output so far is on disk, or after
// freezeTimeout, when the agent may still be running. Thaw ends the freeze.
func (s *Server) Freeze(ctx context.Context) *Freeze {
	f := &Freeze{s: s, begin: time.Now(), answered: make(chan struct{})}
	s.mu.Lock()
	if s.current == nil || s.exit != nil {
		// An agent whose shim is not connected may still be running.
		f.running = s.exit == nil && (s.seen || s.startedBefore())
		s.mu.Unlock()
		return f
	}
	s.freezes++
	f.c, f.id = s.current, s.freezes
	s.frozen[f.id] = f
	s.mu.Unlock()
	if f.c.send(wire.TypeFreeze, wire.Freeze{ID: f.id}) != nil {
		return f
	}
	timer := time.NewTimer(freezeTimeout)
	defer timer.Stop()
	select {
	case <-f.answered:
	case <-timer.C:
		s.unstopped.do(func(skipped int) {
			s.log.Info("the agent does not stop for the checkpoint; its files may be changing", "timesBefore", skipped)
		})
	case <-ctx.Done():
	}
	return f
}

// startedBefore reports whether an earlier process of the daemon has served this
// attempt's agent.
func (s *Server) startedBefore() bool {
	known := s.journal.State().Session
	return known != nil && known.Attempt == s.pod.Attempt
}

// Thaw ends the freeze. The agent continues unless another freeze needs it stopped. The
// frame names the newest freeze, which may have ended already, because the shim remembers
// only that one.
func (f *Freeze) Thaw() {
	if f.c == nil {
		return
	}
	f.s.mu.Lock()
	delete(f.s.frozen, f.id)
	newest, needed := f.s.freezes, false
	for _, other := range f.s.frozen {
		needed = needed || other.c == f.c && !other.thawed
	}
	f.s.mu.Unlock()
	if !needed {
		_ = f.c.send(wire.TypeThaw, wire.Freeze{ID: newest})
	}
}

// active reports whether nothing has ended this freeze: the shim is still connected, and
// has not continued the agent by itself. It says nothing about whether the agent stopped.
func (f *Freeze) active() bool {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	return f.c != nil && f.c == f.s.current && !f.thawed
}

// unbroken reports whether the whole agent was stopped for this freeze and has not run
// since.
func (f *Freeze) unbroken() bool {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	return f.c != nil && f.c == f.s.current && f.stopped && !f.running && !f.thawed
}

// Consistency returns whether the agent has been stopped since the freeze began, and for
// how long.
func (f *Freeze) Consistency() (v1alpha1.CheckpointConsistency, time.Duration) {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	switch {
	case f.c == nil && f.running:
		return v1alpha1.ConsistencyAgentNotStopped, 0
	case f.c == nil:
		return v1alpha1.ConsistencyPointInTime, 0
	case !f.stopped || f.running:
		return v1alpha1.ConsistencyAgentNotStopped, time.Since(f.begin)
	case f.thawed:
		return v1alpha1.ConsistencyAgentThawed, time.Since(f.begin)
	}
	return v1alpha1.ConsistencyPointInTime, time.Since(f.begin)
}

// AtEnd returns the consistency of the attempt's last checkpoint, for which no agent is
// stopped, since the daemon waits for it to end.
func (s *Server) AtEnd() (v1alpha1.CheckpointConsistency, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exit == nil && s.current != nil {
		return v1alpha1.ConsistencyAgentNotStopped, 0
	}
	return v1alpha1.ConsistencyPointInTime, 0
}
