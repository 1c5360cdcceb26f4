package toolclient

import (
	"context"
	"fmt"
	"io"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bridge serves the task's tools by MCP to the agent that has started this program, on its
// standard input and output, until the input ends.
func Bridge(ctx context.Context, c Client, in io.ReadCloser, out io.WriteCloser) error {
	tools, instructions, err := c.Tools(ctx)
	if err != nil {
		return err
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "clew", Title: "Clew", Version: c.Version}, &mcp.ServerOptions{
		Instructions: instructions,
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
	})
	for _, tool := range tools {
		server.AddTool(tool, func(ctx context.Context, request *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			var arguments any
			if len(request.Params.Arguments) > 0 {
				arguments = request.Params.Arguments
			}
			result, err := c.Call(ctx, request.Params.Name, arguments)
			if err != nil { // for the model, which otherwise sees that something failed, but not what
				result = &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: err.Error()}}}
			}
			return result, nil
		})
	}
	session, err := server.Connect(ctx, &mcp.IOTransport{Reader: in, Writer: out}, nil)
	if err != nil {
		return fmt.Errorf("serve Clew's tools: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	select {
	case err = <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
}
