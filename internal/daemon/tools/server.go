// Package tools serves Clew's tools to a task's agent, by the Model Context Protocol (MCP) on
// connections of the pod's socket.
//
// Any process in the agent's container can connect, and may be hostile. It promises:
//
//   - Only the tools that the task's spec gives can be called.
//   - What one connection and all of them can make the daemon do and hold is bounded: the
//     length and the number of messages, the calls in progress, their rate and their time,
//     and the length of answers. A peer that sends too much, or does not read, hinders itself.
//   - Every call is answered, in words that say what to do next; none keeps an agent waiting
//     for long, whatever is down.
//   - No answer contains the value of one of the agent's Secrets.
package tools

import (
	"context"
	"io"
	"slices"

	"github.com/go-logr/logr"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// ServerName is the name of the server in the agents' configurations, which becomes part of
// the tools' names there.
const ServerName = "clew"

// What models are told that the tools are good for. Some agents show no more than the beginning,
// about 200 bytes, until a model asks for the tools.
const (
	instructions = "Checkpoints of this task's files, to which the work can be taken back, and its whole conversation: take a checkpoint before a risky change, see what has changed since, and search what was said and done."
	supervising  = "Tasks of your own, each with an agent that works apart from you: make them, wait for them, read what they said and changed, and steer them. " +
		"task_create makes one and task_wait waits until it has stopped; read task_history and task_diff before you rely on its work. " +
		"One that went wrong goes on with task_resume and a prompt, or, if its work misleads it, from an earlier checkpoint with task_rewind; task_fork tries several ways from one checkpoint. " +
		"Never wait by calling task_list again and again. A call that is repeated because its answer was lost takes effect once. "
)

// Config configures a Server.
type Config struct {
	// Given are the tools that the task's spec gives.
	Given []v1alpha1.AgentTool
	// Phases are those of the contract that the task leads, in their order; none if they are not known.
	Phases []string
	// Answerer answers the calls.
	Answerer Answerer
	// Version is the daemon's.
	Version string
	// Mask removes the values of Secrets from a text.
	Mask func(string) string
	// Called is called for each call that is let through.
	Called func(tool string)
	Log    logr.Logger
}

// steers reports whether a tool of a supervisor is given.
func (cfg Config) steers() bool { return slices.ContainsFunc(cfg.Given, IsSupervisors) }

// Server serves the tools of one task.
type Server struct {
	server  *mcp.Server
	longest int // of the messages that are received, in bytes
	log     logr.Logger
}

// New returns a server of the given tools. It ignores tools that this version does not have.
func New(cfg Config) *Server {
	s := &Server{longest: maxMessage, log: cfg.Log}
	told := instructions
	if cfg.steers() {
		s.longest, told = maxSteering, supervising+instructions
	}
	s.server = mcp.NewServer(&mcp.Implementation{Name: ServerName, Title: "Clew", Version: cfg.Version}, &mcp.ServerOptions{
		Instructions: told,
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
	})
	s.server.AddReceivingMiddleware(leaveOutNulls)
	gate := newGate(cfg)
	for _, t := range slices.Concat(own(), supervisors(cfg.Phases)) {
		if slices.Contains(cfg.Given, t.name) {
			t.add(s.server, gate, cfg.Answerer)
		}
	}
	return s
}

// Serve serves one connection until its peer closes it, sends more than it may, or ctx ends.
func (s *Server) Serve(ctx context.Context, c io.ReadWriteCloser) {
	session, err := s.server.Connect(ctx, &boundedTransport{c: c, longest: s.longest}, nil)
	if err != nil {
		s.log.V(1).Info("a connection to the tools could not be served", "error", err.Error())
		_ = c.Close()
		return
	}
	defer session.Close()
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		_ = c.Close()
		err = <-ended
	}
	if err != nil && ctx.Err() == nil {
		s.log.V(1).Info("a connection to the tools ended", "error", err.Error())
	}
}
