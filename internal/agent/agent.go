// Package agent knows each kind of coding agent: how it is started without a
// terminal, what the lines it prints mean, how its own session is resumed, and
// which files of its home hold that session. There is one Adapter a kind.
//
// What it reads is untrusted: a line that is not understood is kept as it is,
// never dropped. Nothing here writes a file or starts a process.
//
// # The Exec agent's lines
//
// An agent of type Exec is any command. Of the lines on its standard output,
// JSON objects whose "type" is one of these are understood:
//
//	{"type":"message","role":"assistant","text":"I will look at the tests first."}
//	{"type":"tool_call","id":"call-1","name":"shell","input":{"command":"go test ./..."}}
//	{"type":"tool_result","id":"call-1","output":"ok","isError":false}
//	{"type":"usage","inputTokens":1200,"outputTokens":80,"costMicroUSD":5400}
//
// role is assistant (the default), user or system. input is any JSON value and
// may be left out. output is text; another JSON value is kept as its JSON.
// isError may be left out. The numbers of usage are whole, not negative, and
// are added to the task's totals; each may be left out. Fields beyond these are
// kept with the message.
//
// Every other line is plain output. It is recorded too, several lines together,
// but is no message of the conversation. A line of one of the four types whose
// fields are wrong (a tool call without an id, say) is recorded as it is,
// marked as not understood.
//
// The agent finds the conversation so far, in the same lines, in the file that
// the environment variable CLEW_CONVERSATION names (see Encode).
package agent

import (
	"fmt"
	"io/fs"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Adapter knows one kind of agent. Its methods are pure but for Session, which
// reads from the file system it is given.
type Adapter interface {
	// Executable is the program's name, for a template that gives no command.
	Executable() string
	// Files are settings that the agent reads from a folder that it cannot
	// write to, by their paths there: a path may have folders ("hooks/a.json").
	// They are there whether or not there is a hook: Command names them.
	Files(FilesRequest) map[string][]byte
	// Command says how the agent is started.
	Command(Start) Command
	// NewParser reads the output of one run.
	NewParser(ParserOptions) Parser
	// StatePaths are the files and folders below the agent's home that hold its
	// sessions, and no credentials: part of every checkpoint. Patterns as in
	// path.Match, a folder stands for all that is in it. None means all of home.
	StatePaths() []string
	// Session looks for the session below the agent's home. It returns
	// fs.ErrNotExist if it is not there, or not one that can be resumed.
	Session(home fs.FS, id string) (Session, error)
	// TokensInSession tells whether the tokens of a run stand in its session's
	// files, since its output tells of them only at the end.
	TokensInSession() bool
	// BeforeTools tells whether the agent, started with the Files, asks the hook
	// before it runs a tool and waits for it.
	BeforeTools() bool
	// WordsTell tells whether the words of the program are known, so that its last
	// lines say why it failed. Those of any other command may mean anything.
	WordsTell() bool
	// HookComesFirst tells whether the hook is told of a call before the output
	// is, if that tells of calls that are cut at all.
	HookComesFirst() bool
}

// FilesRequest says what the settings of Files are to do.
type FilesRequest struct {
	// Hook is the program, with its arguments, to be run before each tool: it
	// reads on its standard input what ParseHook understands, and the tool waits
	// for its end. None is run when empty.
	Hook []string
	// Dir is the folder that the files will be in.
	Dir string
}

// Start is what an agent is started with.
type Start struct {
	// Prompt is the next user message.
	Prompt string
	// Model to use; the agent's own choice when empty.
	Model string
	// Session is the id of the session to go on with; empty begins a new one.
	Session string
	// Args are the arguments that the user's template gives to the program.
	Args []string
	// Worktree is the agent's working folder, FilesDir the folder of Files.
	Worktree, FilesDir string
	// Env is the environment that the user's template and image give.
	Env []string
}

// Command is how the program that the user's template names is started.
type Command struct {
	// Args are all of its arguments: the user's, where the program reads them,
	// and Clew's.
	Args []string
	// Env is added unless the user has set the variable.
	Env []string
	// HomeFiles are small files that are written below the agent's home before
	// each start, by their paths there, for agents that find the folder of Files
	// in no other way. What was there under the same path is replaced.
	HomeFiles map[string][]byte
	// Stdin is what the agent reads on its standard input before the end; it
	// reads nothing when empty. One argument holds at most 128 KiB, so a prompt
	// goes this way wherever the agent takes it.
	Stdin string
}

// ParserOptions say what is known of a run before its first line.
type ParserOptions struct {
	// Prompt is what the run was started with: agents that print it again are
	// not recorded twice.
	Prompt string
	// Session is what was last known of the session that the run goes on with:
	// from an earlier process that read the same run, or from the run before
	// that this one resumes; nil if there is none. All of its fields matter.
	Session *daemonv1.AgentSession
	// Run tells this run of the agent from the task's others, by the number of
	// its attempt. It becomes part of the ids of tool calls where the agent
	// numbers them anew in each run.
	Run string
	// Model is what the run was started with, for agents that do not tell.
	Model string
	// Outcome is what an earlier process that read the same run knew of its end.
	Outcome Outcome
	// Prices add to the built-in ones.
	Prices map[string]daemonapi.Price
}

// Parser reads what one run of an agent prints.
type Parser interface {
	// Line reads one line, without its line end, and returns what it completes.
	Line(line []byte) []Item
	// Pending tells that something read so far is in no item yet: the pieces of
	// a message that is being streamed. Its lines are not recorded until it is.
	Pending() bool
	// End returns what is left when the output has ended.
	End() []Item
	// Session is the agent's session, as far as it is known; nil before.
	Session() *daemonv1.AgentSession
	// Outcome is what the run has told of its end, so far.
	Outcome() Outcome
	// Clone returns a parser that goes on from here by itself: lines that were
	// read but not recorded come again, to an earlier clone.
	Clone() Parser
}

// Item is one thing that an agent said: exactly one of its pointers is set.
type Item struct {
	// Message is a message, a tool call, a tool's answer, or a line that was not
	// understood (Raw).
	Message *daemonv1.Message
	// Usage adds to the totals.
	Usage *daemonv1.Usage
	// WholeRun says of Usage that it is what the run used in all: what was counted
	// of the run before, by the files of its session, is part of it.
	WholeRun bool
	// Output is a line of plain output, valid UTF-8 without NUL.
	Output *string
}

// Session is what an agent's own files say of a session.
type Session struct {
	// Results are the ids of the tool calls whose results it holds, as the
	// agent's output names them; nil where it is not told.
	Results map[string]bool
	// ResultCount counts the results; -1 where it is not told.
	ResultCount int
	// Tokens are those of all its answers; nil where the files do not tell.
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
		return nil, fmt.Errorf("this daemon knows no agent of type %q: use an image of Clew's that is as new as the manager", agentType)
	}
}
