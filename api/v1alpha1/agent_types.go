package v1alpha1

// AgentType is a kind of agent. It determines how the agent is started, how its output is
// parsed and how its own session is resumed.
// +kubebuilder:validation:Enum=Exec;ClaudeCode;Codex;GeminiCLI;OpenCode;QwenCode
type AgentType string

const (
	// AgentExec is any command; its documented JSON lines are parsed as messages and tool
	// calls, its other lines are plain output.
	AgentExec AgentType = "Exec"
	// AgentClaudeCode is Claude Code, the program claude.
	AgentClaudeCode AgentType = "ClaudeCode"
	// AgentCodex is Codex CLI, the program codex.
	AgentCodex AgentType = "Codex"
	// AgentGeminiCLI is Gemini CLI, the program gemini.
	AgentGeminiCLI AgentType = "GeminiCLI"
	// AgentOpenCode is OpenCode, the program opencode.
	AgentOpenCode AgentType = "OpenCode"
	// AgentQwenCode is Qwen Code, the program qwen.
	AgentQwenCode AgentType = "QwenCode"
)

// Agent is the agent that works on the task.
// +kubebuilder:validation:XValidation:rule="self.type != 'Exec' || !has(self.model)",fieldPath=".model",message="an agent of type Exec is any command, and takes no model: leave agent.model out, and name the model in the container's command, args or env"
type Agent struct {
	// type of the agent. Exec runs the command of the container "agent"; for the other
	// types, Clew knows the program and its options.
	// +optional
	// +kubebuilder:default=Exec
	Type AgentType `json:"type,omitempty"`

	// model that the agent uses; the agent's own choice when left out. A change takes
	// effect with the next attempt.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9._:/@+=,\\\\[\\\\]-]*$')",message="model must be the name of a model as the agent's own option takes it, such as claude-sonnet-4-5 or openai/gpt-5: it begins with a letter or digit and contains no spaces"
	Model string `json:"model,omitempty"`

	// idleSeconds is the time without output after which the agent is terminated, which counts as a failure
	// that is retried; never when left out. A long-running tool is silent as well.
	// +optional
	// +kubebuilder:validation:Minimum=30
	// +kubebuilder:validation:Maximum=604800
	IdleSeconds *int32 `json:"idleSeconds,omitempty"`

	// statePaths are folders under the agent's home that contain its own session state;
	// they are part of every checkpoint. For an agent of type Exec it is the whole home
	// when left out; for the others, these are added to the folders that Clew knows. Do not
	// name a folder that contains credentials.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.all(p, !p.startsWith('/') && !p.startsWith('-') && !p.contains('..') && !p.matches('[\\\\x00-\\\\x1f\\\\x7f]'))",message="statePaths are relative to the agent's home: no leading '/' or '-', no '..', no control characters"
	StatePaths []string `json:"statePaths,omitempty"`
}

// RiskyToolAction is what is done about a risky tool call.
// +kubebuilder:validation:Enum=Checkpoint;Ask;Deny
type RiskyToolAction string

const (
	// RiskyToolCheckpoint takes a checkpoint before the tool runs.
	RiskyToolCheckpoint RiskyToolAction = "Checkpoint"
	// RiskyToolAsk has the tool wait until a person answers, and takes a checkpoint before it runs.
	RiskyToolAsk RiskyToolAction = "Ask"
	// RiskyToolDeny refuses the call at once.
	RiskyToolDeny RiskyToolAction = "Deny"
)

// RiskyToolPattern matches tool calls. A field that is left out matches everything.
// +kubebuilder:validation:XValidation:rule="has(self.tool) || has(self.input)",message="set tool, input or both in beforeRiskyTools: a pattern without either would match every tool call; to have a checkpoint before each of those, set everyToolCalls to 1"
// +kubebuilder:validation:XValidation:rule="!has(self.message) || self.action != 'Checkpoint'",fieldPath=".message",message="only a rule with the action Ask or Deny has a message: set action, or leave message out"
type RiskyToolPattern struct {
	// tool is a regular expression (RE2) that matches anywhere in the tool's name, which each type of
	// agent chooses itself: Bash in Claude Code, run_shell_command in Gemini CLI.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="''.matches(self) in [true, false]",message="tool must be a regular expression in RE2 syntax, such as (?i)bash|shell|exec: see https://github.com/google/re2/wiki/Syntax"
	Tool string `json:"tool,omitempty"`
	// input is a regular expression (RE2) that matches anywhere in the tool's input, written as JSON: a
	// line of a command that has several begins after \n there.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="''.matches(self) in [true, false]",message="input must be a regular expression in RE2 syntax, such as git push: see https://github.com/google/re2/wiki/Syntax"
	Input string `json:"input,omitempty"`
	// action is what is done about a call that matches. If several patterns match, Deny comes before
	// Ask, and Ask before Checkpoint. Ask: the call waits, in status.requests, until somebody who has
	// the verb approve on the Task answers in spec.decisions, or until approvalDeadlineSeconds have
	// passed, which denies it. Agents that have hooks wait in theirs. An agent of type Exec is stopped
	// with a checkpoint as soon as the call is seen; once it is answered, the agent starts again and is
	// told the answer, and if that is Approve, one such call passes in that attempt. Deny: the call is
	// refused at once, with message; an agent of type Exec is stopped, which counts towards
	// backoffLimit, and told when it starts again. An input of more than 64 KiB cannot be looked at as
	// a whole, and matches. Ask and Deny guide an honest agent, and are no wall against a hostile one:
	// such an agent can do the same by other means.
	// +optional
	// +kubebuilder:default=Checkpoint
	Action RiskyToolAction `json:"action,omitempty"`
	// message is a sentence about the rule: the agent reads it when a call is refused, and whoever is
	// asked sees it in status.requests.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\x00-\\x1f\\x7f]')",message="message must be one line of text without control characters"
	Message string `json:"message,omitempty"`
}

// ContextLimits bound the conversation that is rendered into the prompt of an
// agent that cannot resume its own session.
type ContextLimits struct {
	// messages is the number of newest messages that are rendered.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Messages *int32 `json:"messages,omitempty"`
	// toolCalls is the number of newest tool calls that are rendered.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	ToolCalls *int32 `json:"toolCalls,omitempty"`
	// toolResultBytes is the number of bytes that are rendered of each tool's result.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65536
	ToolResultBytes *int32 `json:"toolResultBytes,omitempty"`
	// summary says whether a summary of the omitted messages comes first.
	// +optional
	Summary ConversationMode `json:"summary,omitempty"`
	// bytes is the size of the whole rendered conversation.
	// +optional
	// +kubebuilder:validation:Minimum=1000
	// +kubebuilder:validation:Maximum=1000000
	Bytes *int32 `json:"bytes,omitempty"`
}

// ConversationPolicy says when snapshots of a conversation are taken, and how much of it
// is rendered into an agent's prompt.
type ConversationPolicy struct {
	// snapshotEveryMessages is the number of messages after which a snapshot of the
	// conversation is recorded and a ConversationSnapshot created; 0 for no automatic
	// snapshots.
	// +optional
	// +kubebuilder:default=50
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	// +kubebuilder:validation:XValidation:rule="self == 0 || self >= 5",message="snapshotEveryMessages must be 0, for no automatic snapshots, or at least 5"
	SnapshotEveryMessages *int32 `json:"snapshotEveryMessages,omitempty"`
	// context bounds the conversation that is rendered into the prompt when the agent's own
	// session cannot be resumed. The defaults are 200 messages, 100 tool calls, 2000 bytes
	// of each result, a summary, and 200000 bytes in total.
	// +optional
	// +kubebuilder:default={messages: 200, toolCalls: 100, toolResultBytes: 2000, summary: Include, bytes: 200000}
	Context ContextLimits `json:"context,omitempty"`
}
