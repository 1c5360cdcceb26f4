package socket

import (
	"context"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// freezeTimeout is how long the agent may take to stop for a checkpoint.
const freezeTimeout = 3 * time.Second

// Freeze is one stop of the agent, which stands still until all of them are over. What
// a checkpoint says of its consistency is what is known of it when all files have been
// read.
type Freeze struct {
	s        *Server
	c        *connection // nil if there was no agent to stop
	id       int64
	begin    time.Time
	answered chan struct{} // closed when the agent is stopped

	// Under s.mu.
	stopped bool // the shim said that the agent is stopped
	running bool // but some process is not
	thawed  bool // it went on before it was told to
}

// Freeze stops the agent and returns when all it said so far is on disk; thaw
// ends that. An agent that does not answer in time may be running.
func (s *Server) Freeze(ctx context.Context) *Freeze {
	f := &Freeze{s: s, begin: time.Now(), answered: make(chan struct{})}
	s.mu.Lock()
	if s.current == nil || s.exit != nil {
		// An agent whose shim is not connected may be running for a while.
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
		s.unstopped.tell(func(untold int) {
			s.log.Info("the agent does not stop for the checkpoint; its files may be changing", "timesBefore", untold)
		})
	case <-ctx.Done():
	}
	return f
}

// startedBefore reports whether a daemon before this one has served this
// attempt's agent.
func (s *Server) startedBefore() bool {
	known := s.journal.State().Session
	return known != nil && known.Attempt == s.pod.Attempt
}

// Thaw lets the agent go on, unless it is to stand still for another freeze. The shim
// knows of the newest alone, which may be over already.
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

// lasts reports whether the agent stands still for this freeze, if it ever did.
func (f *Freeze) lasts() bool {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	return f.c != nil && f.c == f.s.current && !f.thawed
}

// stands reports whether the agent has stood still for this freeze from when it was stopped.
func (f *Freeze) stands() bool {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	return f.c != nil && f.c == f.s.current && f.stopped && !f.running && !f.thawed
}

// Consistency says whether the agent has stood still since it was stopped, and
// for how long.
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

// AtEnd is what is known when the attempt's last checkpoint is taken: nobody
// stops an agent whose end is being awaited.
func (s *Server) AtEnd() (v1alpha1.CheckpointConsistency, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exit == nil && s.current != nil {
		return v1alpha1.ConsistencyAgentNotStopped, 0
	}
	return v1alpha1.ConsistencyPointInTime, 0
}
