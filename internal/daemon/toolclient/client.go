// Package toolclient is the side of Clew's tools in the agent's container: a bridge for agents
// that know MCP, and the program clew, a command line for all others and for shells.
//
// Both open a connection to the daemon for each call. So nothing is lost when the daemon is
// restarted between two calls, and idle agents hold no connection.
package toolclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

const (
	// connectWait is how long a daemon that is being restarted is waited for.
	connectWait = 10 * time.Second
	// openWait is how long it may take to answer the first frame.
	openWait = 10 * time.Second
)

// RefusedError is why the daemon does not serve a connection, in words for whoever called.
type RefusedError struct{ Text string }

// Error implements error.
func (e *RefusedError) Error() string { return e.Text }

// Client calls the tools.
type Client struct {
	// Socket is the path of the daemon's unix socket.
	Socket string
	// Name and Version are told to the daemon.
	Name, Version string
}

// with opens a session and closes it when f has returned.
func (c Client) with(ctx context.Context, f func(*mcp.ClientSession) error) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := mcp.NewClient(&mcp.Implementation{Name: c.Name, Version: c.Version}, &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}})
	session, err := client.Connect(ctx, &mcp.IOTransport{Reader: conn, Writer: conn}, nil)
	if err != nil {
		return fmt.Errorf("begin a session with Clew's daemon: %w", err)
	}
	defer session.Close()
	return f(session)
}

// Tools lists the tools that the task gives its agent. instructions say what they are good for.
func (c Client) Tools(ctx context.Context) (tools []*mcp.Tool, instructions string, err error) {
	err = c.with(ctx, func(session *mcp.ClientSession) error {
		instructions = session.InitializeResult().Instructions
		for tool, err := range session.Tools(ctx, nil) {
			if err != nil {
				return fmt.Errorf("list Clew's tools: %w", err)
			}
			tools = append(tools, tool)
		}
		return nil
	})
	return tools, instructions, err
}

// Call calls a tool. arguments is encoded as JSON.
func (c Client) Call(ctx context.Context, tool string, arguments any) (result *mcp.CallToolResult, err error) {
	err = c.with(ctx, func(session *mcp.ClientSession) (err error) {
		if result, err = session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments}); err != nil {
			return fmt.Errorf("call Clew's tool %s: %w", tool, err)
		}
		return nil
	})
	return result, err
}

// connect opens a connection, and waits a while for a daemon that cannot be reached.
func (c Client) connect(ctx context.Context) (net.Conn, error) {
	waiting, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	for wait := (backoff.Backoff{Min: 20 * time.Millisecond, Max: time.Second}); ; {
		conn, err := c.open(waiting)
		if err == nil || errors.As(err, new(*RefusedError)) {
			return conn, err
		}
		if wait.Wait(waiting) != nil {
			return nil, fmt.Errorf("Clew's daemon cannot be reached at %s; go on with your work, and try again later: %w", c.Socket, err)
		}
	}
}

// open opens a connection and asks for the tools.
func (c Client) open(ctx context.Context) (net.Conn, error) {
	conn, f, err := c.ask(ctx, wire.TypeTools, struct{}{}, wire.TypeToolsOpened)
	if err != nil {
		return nil, err
	}
	var opened wire.ToolsOpened
	if err = f.Decode(&opened); err == nil && opened.Refused != "" {
		err = &RefusedError{opened.Refused}
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return conn, nil
}

// ask opens a connection, sends its first frame and reads the answer, which has the type want.
func (c Client) ask(ctx context.Context, frame wire.Type, body any, want wire.Type) (net.Conn, wire.Frame, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.Socket)
	if err != nil {
		return nil, wire.Frame{}, err
	}
	_ = conn.SetDeadline(time.Now().Add(openWait))
	var f wire.Frame
	if err = wire.Write(conn, frame, body); err == nil {
		f, err = wire.Read(conn)
	}
	if err == nil && f.Type != want {
		err = fmt.Errorf("unexpected frame type %d", f.Type)
	}
	if err != nil {
		conn.Close()
		return nil, wire.Frame{}, err
	}
	return conn, f, nil
}

// Delivered tells the daemon that the answer to a call was written out, so that the same call again
// is another one. Daemons of older versions do not know that.
func (c Client) Delivered(ctx context.Context, call string) error {
	conn, _, err := c.ask(ctx, wire.TypeDelivered, wire.Delivered{Calls: []string{call}}, wire.TypeNoted)
	if err != nil {
		return fmt.Errorf("tell Clew's daemon that an answer was written out: %w", err)
	}
	return conn.Close()
}

// TextOf returns the text of a result.
func TextOf(result *mcp.CallToolResult) string {
	text := ""
	for _, content := range result.Content {
		if t, ok := content.(*mcp.TextContent); ok {
			text += t.Text
		}
	}
	return text
}
