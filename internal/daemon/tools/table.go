package tools

import (
	"context"
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// Answerer answers the calls of tools. All but Call are about the agent's own task. An error that is
// a *Refusal is told to the agent in its own words.
type Answerer interface {
	// Checkpoint takes a checkpoint, unless the newest one holds the files as they are.
	Checkpoint(context.Context, CheckpointInput) (Answer, error)
	// Checkpoints lists checkpoints, newest first.
	Checkpoints(context.Context, CheckpointsInput) (Answer, error)
	// SearchHistory searches the conversation.
	SearchHistory(context.Context, SearchInput) (Answer, error)
	// Diff compares two checkpoints, or one with the files as they are.
	Diff(context.Context, DiffInput) (Answer, error)
	// Call has a supervisor's tool called, which is about its children or its contract.
	Call(context.Context, Call) (Answer, error)
}

// CheckpointInput is the input of the tool checkpoint.
type CheckpointInput struct {
	Message string `json:"message" jsonschema:"one line that says what this state is, such as: the tests pass, before the refactoring"`
}

// CheckpointsInput is the input of the tool checkpoints.
type CheckpointsInput struct {
	Limit  int   `json:"limit,omitempty" jsonschema:"how many checkpoints to list, 20 if left out, 100 at most"`
	Before int64 `json:"before,omitempty" jsonschema:"list only checkpoints with lower numbers than this one"`
}

// SearchInput is the input of the tool history_search.
type SearchInput struct {
	Query string `json:"query" jsonschema:"the words to find, in any order; put a phrase in double quotes, the word or between alternatives, and a minus before a word that messages must not have"`
	Limit int    `json:"limit,omitempty" jsonschema:"how many messages to return, 10 if left out, 50 at most"`
}

// DiffInput is the input of the tool diff.
type DiffInput struct {
	From *int64 `json:"from,omitempty" jsonschema:"the number of the checkpoint to compare from: the newest one if left out; 0 stands for the files that the task started from"`
	To   *int64 `json:"to,omitempty" jsonschema:"the number of the checkpoint to compare to: the files as they are now if left out"`
	Path string `json:"path,omitempty" jsonschema:"compare only this file, or this folder with everything below it; relative to the root of the worktree"`
}

// tool is a tool that an agent can be given.
type tool struct {
	name v1alpha1.AgentTool
	// add adds the tool to a server whose calls the gate lets through.
	add func(*mcp.Server, *gate, Answerer)
}

// own lists the tools that are about the agent's own task. Descriptions are for models: they say what
// the tool is good for, and when to call it.
func own() []tool {
	return []tool{
		define(mcp.Tool{
			Name:  string(v1alpha1.ToolCheckpoint),
			Title: "Take a checkpoint",
			Description: "Takes a checkpoint: a snapshot of every file in the worktree, of the git repository in it and of this conversation, " +
				"to which the task can be taken back later. It changes no file and makes no commit in your repository. " +
				"Call it when something works and before you change it, and before you try something that may fail. " +
				"The answer names the checkpoint's number. If nothing has changed since the newest checkpoint, none is taken, and the answer names that one.",
			Annotations: &mcp.ToolAnnotations{IdempotentHint: true, DestructiveHint: no(), OpenWorldHint: no()},
		}, Answerer.Checkpoint),
		define(mcp.Tool{
			Name:        string(v1alpha1.ToolCheckpoints),
			Title:       "List checkpoints",
			Description: "Lists the checkpoints of this task, newest first: number, time, why it was taken, and its message. Checkpoints that a rewind has left behind are not listed.",
			Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, DestructiveHint: no(), OpenWorldHint: no()},
		}, Answerer.Checkpoints),
		define(mcp.Tool{
			Name:  string(v1alpha1.ToolHistorySearch),
			Title: "Search the conversation",
			Description: "Searches the whole conversation of this task, with all tool calls and their results, also from before your context was compacted or the task was restarted. " +
				"Call it to find again what was said, tried or printed earlier, instead of doing it again. " +
				"Returns the best matches with their positions and the text around the words. The newest messages may take some seconds to be found.",
			Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, DestructiveHint: no(), OpenWorldHint: no()},
		}, Answerer.SearchHistory),
		define(mcp.Tool{
			Name:  string(v1alpha1.ToolDiff),
			Title: "Show what has changed",
			Description: "Shows as a patch what has changed in the worktree's files between two checkpoints of this task or, without to, from a checkpoint to now. " +
				"Unlike git diff it also shows untracked files, and does not depend on what you have committed. A long patch is cut: name a path to see more of it.",
			Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, DestructiveHint: no(), OpenWorldHint: no()},
		}, Answerer.Diff),
	}
}

func no() *bool { return new(bool) }

// define returns a tool with a typed input, whose schema follows from In.
func define[In any](description mcp.Tool, answer func(Answerer, context.Context, In) (Answer, error)) tool {
	description.InputSchema = schemaOf[In]()
	return tool{
		name: v1alpha1.AgentTool(description.Name),
		add: func(server *mcp.Server, g *gate, a Answerer) {
			mcp.AddTool(server, &description, func(ctx context.Context, _ *mcp.CallToolRequest, in In) (*mcp.CallToolResult, any, error) {
				return g.pass(ctx, description.Name, func(ctx context.Context) (Answer, error) { return answer(a, ctx, in) }), nil, nil
			})
		},
	}
}

// schemaOf returns the schema of an input. A field that may be left out has one type there, since
// some models' APIs accept no list of types.
func schemaOf[In any]() *jsonschema.Schema {
	schema, err := jsonschema.For[In](nil)
	if err != nil {
		panic(fmt.Sprintf("the input %T of a tool has no schema: %v", *new(In), err)) // a mistake in this file
	}
	for _, p := range schema.Properties {
		if len(p.Types) == 2 && p.Types[0] == "null" {
			p.Type, p.Types = p.Types[1], nil
		}
	}
	return schema
}
