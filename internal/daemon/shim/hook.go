package shim

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// maxHookInput bounds, in bytes, how much of a call's description is read.
const maxHookInput = 64 << 20

// HookConfig says which agent runs the hook and where the daemon is.
type HookConfig struct {
	// AgentType is the kind of agent that runs the hook.
	AgentType v1alpha1.AgentType
	// Socket is the path of the daemon's unix socket.
	Socket string
	// Stdin is the agent's description of the call.
	Stdin io.Reader
	// Timeout is how long the daemon may take to answer.
	Timeout time.Duration
}

// AwaitTool is the hook that an agent runs before each of its tools: it reports the call
// to the daemon and returns when that has answered. For a risky tool that is after the
// checkpoint before it was taken, or after somebody was asked. refused is then why the tool must
// not run; empty if it may. It never blocks an agent for good: when the daemon does not answer in
// time it returns, and the error says why there is no answer.
func AwaitTool(ctx context.Context, cfg HookConfig) (refused string, err error) {
	stdin, err := io.ReadAll(io.LimitReader(cfg.Stdin, maxHookInput))
	if err != nil {
		return "", fmt.Errorf("read the agent's tool call: %w", err)
	}
	call, err := agent.ParseHook(cfg.AgentType, stdin)
	if err != nil {
		return "", err
	}
	key := rand.Text()
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	wait := backoff.Backoff{Min: 20 * time.Millisecond, Max: time.Second}
	for {
		answer, err := askDaemon(ctx, cfg.Socket, wire.BeforeTool{Key: key, ID: call.CallID, Name: call.Name, Input: call.Input})
		if err == nil {
			return answer.Refused, nil
		}
		if wait.Wait(ctx) != nil {
			return "", fmt.Errorf("the daemon does not answer before the tool %s: %w", call.Name, err)
		}
	}
}

// askDaemon sends one request and waits for its answer.
func askDaemon(ctx context.Context, socket string, call wire.BeforeTool) (answer wire.Proceed, err error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return answer, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := wire.WriteBeforeTool(conn, call); err != nil {
		return answer, err
	}
	f, err := wire.Read(conn)
	if err != nil {
		return answer, err
	}
	if f.Type != wire.TypeProceed {
		return answer, fmt.Errorf("unexpected frame type %d", f.Type)
	}
	return answer, f.Decode(&answer)
}
