package postgres

import (
	"encoding/json"
	"time"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

// The bodies of the lines of an export. Fields are only ever added.

type exportedTask struct {
	Format           string               `json:"format"`
	Namespace        string               `json:"namespace"`
	Name             string               `json:"name"`
	UID              string               `json:"uid"`
	Attempt          int64                `json:"attempt"`
	LastSequence     int64                `json:"lastSequence"`
	ActiveBranch     int64                `json:"activeBranch"`
	Checkpoints      int64                `json:"checkpoints"`
	LatestCheckpoint int64                `json:"latestCheckpoint,omitempty"`
	SnapshotEvery    int64                `json:"snapshotEveryMessages,omitempty"`
	Snapshots        int64                `json:"snapshots,omitempty"`
	Created          time.Time            `json:"created"`
	Updated          time.Time            `json:"updated"`
	State            string               `json:"state,omitempty"`
	StateTime        time.Time            `json:"stateTime,omitzero"`
	Preview          string               `json:"preview,omitempty"`
	Tools            []string             `json:"tools,omitempty"`
	Models           map[string]modelSums `json:"models,omitempty"`
}

// exportedSums are sums over a conversation up to a position.
type exportedSums struct {
	Position     int64 `json:"position"`
	ToolCalls    int64 `json:"toolCalls"`
	InputTokens  int64 `json:"inputTokens"`
	OutputTokens int64 `json:"outputTokens"`
	CostMicroUSD int64 `json:"costMicroUSD"`
}

// exportedBranch is a branch. Branches of the task keep their numbers; those of other
// tasks that it inherits from are numbered -1, -2 … here.
type exportedBranch struct {
	Branch int64 `json:"branch"`
	// Number is the number of an inherited branch in its own task.
	Number   int64                   `json:"number,omitempty"`
	Parent   int64                   `json:"parent,omitempty"`
	Reason   string                  `json:"reason,omitempty"`
	Created  time.Time               `json:"created"`
	Base     exportedSums            `json:"base"`
	Head     exportedSums            `json:"head"`
	Boundary int64                   `json:"boundary"`
	Settled  int64                   `json:"settled"`
	Open     []conversation.OpenCall `json:"openToolCalls,omitempty"`
	// Digest at the head.
	Digest string `json:"digest"`
}

// exportedPiece is a piece of a text that is too long for one line.
type exportedPiece struct {
	Hash []byte `json:"hash"`
	Text string `json:"text,omitempty"`
	// Bytes is set instead of Text if the piece is not valid text.
	Bytes []byte `json:"bytes,omitempty"`
}

// exportedText is a text: either in full, with the lengths of the pieces it is stored in,
// or its beginning and the hashes of the pieces, which precede it.
type exportedText struct {
	Text   string               `json:"text"`
	Cut    []int                `json:"cut,omitempty"`
	Pieces *conversation.Pieces `json:"pieces,omitempty"`
}

type exportedCall struct {
	ID    string       `json:"id"`
	Name  string       `json:"name"`
	Input exportedText `json:"input"`
}

type exportedResult struct {
	CallID      string       `json:"callID"`
	Output      exportedText `json:"output"`
	IsError     bool         `json:"isError,omitempty"`
	Interrupted bool         `json:"interrupted,omitempty"`
}

type exportedMessage struct {
	Branch   int64             `json:"branch"`
	Sums     exportedSums      `json:"upTo"`
	Boundary int64             `json:"boundary"`
	Time     time.Time         `json:"time"`
	Attempt  int32             `json:"attempt"`
	Sequence int64             `json:"sequence"`
	Role     conversation.Role `json:"role"`
	Text     *exportedText     `json:"text,omitempty"`
	Raw      *exportedText     `json:"raw,omitempty"`
	Call     *exportedCall     `json:"toolCall,omitempty"`
	Result   *exportedResult   `json:"toolResult,omitempty"`
}

type exportedCheckpoint struct {
	Number             int64                 `json:"number"`
	Attempt            int64                 `json:"attempt"`
	Trigger            string                `json:"trigger"`
	Time               time.Time             `json:"time"`
	Message            string                `json:"message,omitempty"`
	Commit             string                `json:"commit"`
	Tree               string                `json:"tree"`
	Parent             string                `json:"parent,omitempty"`
	Base               string                `json:"base,omitempty"`
	StateCommit        string                `json:"stateCommit,omitempty"`
	FilesChanged       int32                 `json:"filesChanged"`
	LinesAdded         int64                 `json:"linesAdded"`
	LinesRemoved       int64                 `json:"linesRemoved"`
	GitHead            string                `json:"gitHead,omitempty"`
	GitBranch          string                `json:"gitBranch,omitempty"`
	DirtyFiles         []string              `json:"dirtyFiles,omitempty"`
	DirtyFileCount     int32                 `json:"dirtyFileCount,omitempty"`
	Files              int64                 `json:"files"`
	Bytes              int64                 `json:"bytes"`
	Skipped            []history.SkippedFile `json:"skipped,omitempty"`
	SkippedCount       int32                 `json:"skippedCount,omitempty"`
	Durable            bool                  `json:"durable"`
	Refused            string                `json:"refused,omitempty"`
	RequestedByName    string                `json:"requestedByName,omitempty"`
	RequestedByUID     string                `json:"requestedByUID,omitempty"`
	RiskyTool          *history.RiskyTool    `json:"riskyTool,omitempty"`
	Session            *history.AgentSession `json:"session,omitempty"`
	Changes            []history.FileChange  `json:"changes,omitempty"`
	Consistency        string                `json:"consistency,omitempty"`
	FrozenMilliseconds int64                 `json:"frozenMilliseconds,omitempty"`
	Branch             int64                 `json:"branch"`
	Sums               exportedSums          `json:"upTo"`
	Boundary           int64                 `json:"boundary"`
	Digest             string                `json:"digest"`
}

type exportedOperation struct {
	ID         string    `json:"id"`
	Attempt    int64     `json:"attempt"`
	Checkpoint int64     `json:"checkpoint,omitempty"`
	Asked      int64     `json:"askedPosition,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	Branch     string    `json:"branch"`
	Position   int64     `json:"position"`
	ToolCalls  int64     `json:"toolCalls"`
	Time       time.Time `json:"time"`
	// Rewound is set for the end of a rewind.
	Rewound *history.Rewound `json:"rewound,omitempty"`
}

type exportedSnapshot struct {
	Ordinal  int64        `json:"ordinal"`
	Kind     string       `json:"kind"`
	Time     time.Time    `json:"time"`
	Branch   int64        `json:"branch"`
	Position int64        `json:"position"`
	Sums     exportedSums `json:"upTo"`
	Digest   string       `json:"digest"`
}

type exportedEvent struct {
	ID         string          `json:"id"`
	Time       time.Time       `json:"time"`
	Type       string          `json:"type"`
	Reason     string          `json:"reason"`
	Actor      string          `json:"actor,omitempty"`
	Message    string          `json:"message,omitempty"`
	Attempt    int64           `json:"attempt,omitempty"`
	Checkpoint int64           `json:"checkpoint,omitempty"`
	Details    json.RawMessage `json:"details,omitempty"`
}

// exportedEnd counts the preceding lines by kind.
type exportedEnd struct {
	Lines map[string]int64 `json:"lines"`
}
