// Package agent describes each kind of coding agent: how it is started without a
// terminal, what its output lines mean, how its own session is resumed, and which
// files in its home hold that session. There is one Adapter for each kind.
//
// All input is untrusted: a line that is not understood is kept unchanged, never
// dropped. Nothing in this package writes a file or starts a process.
//
// # The Exec agent's lines
//
// An agent of type Exec is any command. On its standard output, JSON objects with
// one of these types are understood:
//
//	{"type":"message","role":"assistant","text":"I will look at the tests first."}
//	{"type":"tool_call","id":"call-1","name":"shell","input":{"command":"go test ./..."}}
//	{"type":"tool_result","id":"call-1","output":"ok","isError":false}
//	{"type":"usage","inputTokens":1200,"outputTokens":80,"costMicroUSD":5400}
//
// role is assistant (the default), user or system. input is any JSON value and is
// optional. output is text; any other JSON value is kept as JSON. isError is
// optional. The numbers of usage are non-negative integers, each of them optional,
// and are added to the task's totals. Other fields are kept with the message.
//
// Every other line is plain output. It is recorded as well, several lines together,
// but is not a message of the conversation. A line of one of the four types with
// invalid fields, such as a tool call without an id, is recorded unchanged and
// marked as not understood.
//
// The agent finds the conversation so far, in the same format, in the file named by
// the environment variable CLEW_CONVERSATION (see Encode).
package agent

import (
	"fmt"
	"io/fs"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Adapter describes one kind of agent. Its methods are pure, except for Session,
// which reads from the file system it is given.
type Adapter interface {
	// Executable returns the program's name, for a template without a command.
	Executable() string
	// Files returns settings that the agent reads from a folder that it cannot
	// write to, by their relative paths, such as "hooks/a.json". The same paths
	// exist with and without a hook, because Command refers to them.
	Files(FilesRequest) map[string][]byte
	// Command returns how to start the agent.
	Command(Start) Command
	// NewParser returns a parser for the output of one run.
	NewParser(ParserOptions) Parser
	// StatePaths returns the files and folders in the agent's home that hold its
	// sessions but no credentials; they are part of every checkpoint. They are
	// patterns of path.Match, and a folder includes everything in it. None means
	// the whole home.
	StatePaths() []string
	// Session reads the session from the agent's home. It returns fs.ErrNotExist
	// if the session does not exist or cannot be resumed.
	Session(home fs.FS, id string) (Session, error)
	// TokensInSession reports whether the tokens of a run must be read from its
	// session's files, because its output reports them only at the end.
	TokensInSession() bool
	// AsksBeforeTools reports whether the agent, when started with the Files, runs the
	// hook before each tool and waits for it.
	AsksBeforeTools() bool
	// KnownErrors reports whether the program's error messages are known, so that
	// its last lines explain a failure. Those of any other command can mean
	// anything.
	KnownErrors() bool
	// HookComesFirst reports whether the hook runs before the output contains the
	// call. Such an output may never contain a call that was cut off.
	HookComesFirst() bool
}

// FilesRequest says what the settings of Files must do.
type FilesRequest struct {
	// Hook is the program, with its arguments, to run before each tool. ParseHook
	// parses its standard input, and the tool waits until it ends. Empty means no
	// hook.
	// It refuses the tool by the exit code 2, and says why on its standard error.
	Hook []string
	// HookSeconds is how long the agent waits for the hook before it runs the tool anyway; 0 means ten
	// minutes.
	HookSeconds int
	// Tools is the program, with its arguments, that serves Clew's tools by MCP on its standard
	// input and output. Empty means that the agent gets none.
	Tools []string
	// Dir is the folder where the files will be.
	Dir string
}

// Start holds what an agent is started with.
type Start struct {
	// Prompt is the next user message.
	Prompt string
	// Model is the model to use; empty leaves the choice to the agent.
	Model string
	// Session is the id of the session to resume; empty starts a new one.
	Session string
	// Args are the program's arguments from the user's template.
	Args []string
	// Worktree is the agent's working directory, FilesDir the folder of Files.
	Worktree, FilesDir string
	// Tools and HookSeconds are those of FilesRequest.
	Tools       []string
	HookSeconds int
	// Env is the environment from the user's template and image.
	Env []string
}

// Command describes how to start the program named by the user's template.
type Command struct {
	// Args are all arguments: Clew's, and the user's at the place where the program
	// reads them.
	Args []string
	// Env holds variables to set unless the user has set them.
	Env []string
	// HomeFiles are small files to write to the agent's home before each start, by
	// their paths there, for agents that can find the folder of Files in no other
	// way. They replace existing files.
	HomeFiles map[string][]byte
	// Stdin is the agent's whole standard input. Since an argument holds at most
	// 128 KiB, the prompt is passed here wherever the agent accepts it.
	Stdin string
}

// ParserOptions hold what is known about a run before its first line.
type ParserOptions struct {
	// Prompt is the prompt of the run. If the agent prints it again, it is not
	// recorded twice.
	Prompt string
	// Session is the last known state of the session that the run continues: from
	// an earlier process that parsed the same run, or from the run that this one
	// resumes; nil if there is none. All of its fields matter.
	Session *daemonv1.AgentSession
	// Run is the number of the attempt, which distinguishes this run from others of
	// the task. It becomes part of tool call ids if the agent restarts their
	// numbering in each run.
	Run string
	// Model is the model of the run, for agents that do not print it.
	Model string
	// Outcome is what an earlier process that parsed the same run knew about its end.
	Outcome Outcome
	// Prices extend and override the built-in prices.
	Prices map[string]daemonapi.Price
}

// Parser parses the output of one run of an agent.
type Parser interface {
	// Line parses one line, without its line end, and returns the items it completes.
	Line(line []byte) []Item
	// Pending reports whether lines were read that are in no item yet: pieces of a
	// message that is being streamed. These lines count as recorded only once the
	// message is.
	Pending() bool
	// End returns the remaining items at the end of the output.
	End() []Item
	// Session returns what is known about the agent's session; nil if nothing is.
	Session() *daemonv1.AgentSession
	// Outcome returns what the output said about the end of the run so far.
	Outcome() Outcome
	// Clone returns an independent parser in the same state. Lines that were read
	// but not recorded are parsed again, by an earlier clone.
	Clone() Parser
}

// Item is one piece of an agent's output. Exactly one of its pointers is set.
type Item struct {
	// Message is a message, a tool call, a tool's result, or a line that was not
	// understood (Raw).
	Message *daemonv1.Message
	// Usage is added to the totals.
	Usage *daemonv1.Usage
	// WholeRun says that Usage is the total of the run, and includes what was
	// already counted from the files of its session.
	WholeRun bool
	// Output is a line of plain output, valid UTF-8 without NUL.
	Output *string
}

// Session is what an agent's own files say about a session.
type Session struct {
	// Results are the ids, as in the agent's output, of the tool calls whose
	// results the session holds; nil if the files do not name them.
	Results map[string]bool
	// ResultCount is the number of results; -1 if unknown.
	ResultCount int
	// Tokens are those of all answers; nil if the files do not contain them.
	Tokens []Tokens
}

// For returns the adapter of an agent type.
func For(agentType v1alpha1.AgentType) (Adapter, error) {
	switch agentType {
	case v1alpha1.AgentExec, "":
		return Exec{}, nil
	case v1alpha1.AgentClaudeCode:
		return ClaudeCode{}, nil
	case v1alpha1.AgentCodex:
		return Codex{}, nil
	case v1alpha1.AgentGeminiCLI:
		return GeminiCLI{}, nil
	case v1alpha1.AgentOpenCode:
		return OpenCode{}, nil
	case v1alpha1.AgentQwenCode:
		return QwenCode{}, nil
	default:
		return nil, fmt.Errorf("no agent of type %q in this version of Clew: use a Clew image of the same version as the manager", agentType)
	}
}
