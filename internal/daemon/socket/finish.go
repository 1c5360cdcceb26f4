package socket

import "github.com/clew-dev/clew/internal/daemon/wire"

// Finish asks the shim to end the agent.
func (s *Server) Finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.current; c != nil && s.exit == nil {
		c.sendAsync(wire.TypeFinish, nil)
	}
}

// Kill kills the agent at once, so that it does nothing more.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.current; c != nil && s.exit == nil {
		c.sendAsync(wire.TypeFinish, wire.Finish{Now: true})
	}
}

// Release lets the shim end, now or when it next connects. A code of -1 stands for the
// agent's own exit code.
func (s *Server) Release(code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = &wire.Release{}
	if code >= 0 {
		s.released.Code = &code
	}
	if c := s.current; c != nil {
		c.sendAsync(wire.TypeRelease, s.released)
	}
}

// Fence ends the agent, now and whenever a shim connects from then on.
func (s *Server) Fence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fenced = true
	if c := s.current; c != nil {
		c.sendAsync(wire.TypeStop, nil)
	}
}

func (s *Server) isFenced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fenced
}
