package tools

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clew-dev/clew/internal/toolcall"
)

const (
	// maxMessage bounds a message that is received, in bytes, and maxSteering one of a supervisor,
	// whose calls contain the prompts of other agents.
	maxMessage  = 64 << 10
	maxSteering = toolcall.MaxArguments + 16<<10
	// maxMessages bounds the messages on one connection. The program in the agent's container
	// opens one for each call, or a few.
	maxMessages = 200
	// maxInProgress bounds the requests of one connection that are not answered yet: no more
	// is read meanwhile.
	maxInProgress = 4
)

// boundedTransport carries MCP over a connection whose peer may be hostile.
type boundedTransport struct {
	c io.ReadWriteCloser
	// longest bounds a message that is received, in bytes.
	longest int
}

// Connect implements mcp.Transport.
func (t *boundedTransport) Connect(ctx context.Context) (mcp.Connection, error) {
	lines, err := (&mcp.IOTransport{Reader: t.c, Writer: t.c, MaxLineLength: t.longest}).Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &boundedConnection{Connection: lines, places: make(chan struct{}, maxInProgress), closed: make(chan struct{})}, nil
}

// boundedConnection reads no more messages than it may, and no request while too many are in
// progress: the SDK itself queues without a bound.
type boundedConnection struct {
	mcp.Connection
	places chan struct{}
	read   int
	once   sync.Once
	closed chan struct{}
}

// Read implements mcp.Connection.
func (b *boundedConnection) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := b.Connection.Read(ctx)
	if err != nil {
		return nil, err
	}
	if b.read++; b.read > maxMessages {
		return nil, fmt.Errorf("more than %d messages on one connection", maxMessages)
	}
	if request, ok := m.(*jsonrpc.Request); !ok || !request.IsCall() {
		return m, nil
	}
	select {
	case b.places <- struct{}{}:
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-b.closed:
		return nil, io.EOF
	}
}

// Write implements mcp.Connection.
func (b *boundedConnection) Write(ctx context.Context, m jsonrpc.Message) error {
	if _, ok := m.(*jsonrpc.Response); ok {
		defer func() {
			select {
			case <-b.places:
			default: // an answer to what was no request
			}
		}()
	}
	return b.Connection.Write(ctx, m)
}

// Close implements mcp.Connection.
func (b *boundedConnection) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Connection.Close()
}
