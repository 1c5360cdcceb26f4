package tools

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// leaveOutNulls leaves out of the arguments of calls what is null there: some models write that for an
// argument that they do not give, and the schemas of inputs have one type for each, which is never null.
func leaveOutNulls(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
		if call, ok := request.(*mcp.CallToolRequest); ok && call.Params != nil {
			call.Params.Arguments = withoutNulls(call.Params.Arguments)
		}
		return next(ctx, method, request)
	}
}

// withoutNulls returns JSON without the fields of objects that are null. What is no JSON stays as it is.
func withoutNulls(data json.RawMessage) json.RawMessage {
	if !bytes.Contains(data, []byte("null")) {
		return data
	}
	var value any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return data
	}
	if value == nil {
		return json.RawMessage("{}")
	}
	encoded, err := json.Marshal(prune(value))
	if err != nil {
		return data
	}
	return encoded
}

// prune removes the fields that are null from a value of JSON, and returns it.
func prune(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for name, field := range v {
			if field == nil {
				delete(v, name)
			} else {
				v[name] = prune(field)
			}
		}
	case []any:
		for i := range v {
			v[i] = prune(v[i])
		}
	}
	return value
}
