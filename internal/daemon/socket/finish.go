package socket

import "github.com/clew-dev/clew/internal/daemon/wire"

// Finish has the shim end the agent.
func (s *Server) Finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.current; c != nil && s.exit == nil {
		c.tell(wire.TypeFinish)
	}
}

// Release lets the shim end with an exit code, now and whenever it connects again.
func (s *Server) Release(code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = &wire.Release{}
	if code >= 0 {
		s.released.Code = &code
	}
	if c := s.current; c != nil {
		c.tellOf(wire.TypeRelease, s.released)
	}
}

// Fence ends the agent, now and whenever its shim connects again.
func (s *Server) Fence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fenced = true
	if c := s.current; c != nil {
		c.tell(wire.TypeStop)
	}
}

func (s *Server) isFenced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fenced
}
