package daemontest

import (
	"context"
	"path/filepath"
	"time"

	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/toolclient"
)

// SetOld makes the server one of a version that cannot search conversations.
func (s *Server) SetOld(old bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.old = old
}

// ToolClient returns a client of the tools that the sidecar serves to the agent.
func (w *World) ToolClient() toolclient.Client {
	return toolclient.Client{Socket: filepath.Join(w.RunDir, socket.Name), Name: "test", Version: "test"}
}

// CallTool calls one of Clew's tools, as an agent does. failed says that the answer is a refusal.
func (w *World) CallTool(name string, arguments any) (text string, failed bool) {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	result, err := w.ToolClient().Call(ctx, name, arguments)
	if err != nil {
		w.T.Fatalf("call the tool %s: %v", name, err)
	}
	return toolclient.TextOf(result), result.IsError
}
