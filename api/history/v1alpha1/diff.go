package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Diff is a page of the difference between two moments of a task, or of two tasks of one
// repository.
type Diff struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// From and To are the moments, as they were resolved.
	From DiffMoment `json:"from"`
	To   DiffMoment `json:"to"`
	// Totals over the whole difference, of which the page may show a part.
	Totals DiffTotals `json:"totals"`
	// Conversation is what was said and used between the two moments; absent if it is not known
	// where in a conversation one of them is. If they are on different branches, or of different
	// tasks, only the first page has it.
	Conversation *ConversationDiff `json:"conversation,omitempty"`
	// Items are the files, by path.
	Items []FileDiff `json:"items"`
}

// Types of moments.
const (
	// MomentCheckpoint is a checkpoint.
	MomentCheckpoint = "Checkpoint"
	// MomentBase is the newest commit before the task's first checkpoint that is no
	// checkpoint: what the task started from.
	MomentBase = "Base"
	// MomentCommit is the commit that a checkpoint was made on, if it is not one of the
	// task's checkpoints.
	MomentCommit = "Commit"
	// MomentDrift is what was found on the volume of a task that had been changed while the
	// task was not running, and that waits for a decision about it.
	MomentDrift = "Drift"
	// MomentLive is now, of a running task: its files, read while the agent works.
	MomentLive = "Live"
)

// Words for moments in requests, beside the numbers of checkpoints. Those of another task
// follow its name and a colon.
const (
	WordBase     = "base"
	WordLatest   = "latest"
	WordPrevious = "previous"
	// WordLive is now. Of a task that is not running, it is what has drifted, if that is undecided,
	// or else the latest checkpoint: its volume is not looked at.
	WordLive = "live"
	// WordDrift is what has drifted, as status.drift says. What is previous to it is the
	// checkpoint that the worktree was left at.
	WordDrift = "drift"
)

// DiffMoment is a moment of a task.
type DiffMoment struct {
	Task    string `json:"task"`
	TaskUID string `json:"taskUID"`
	// Type: Checkpoint, Base, Commit, Drift or Live.
	Type string `json:"type"`
	// Checkpoint is the number of the checkpoint.
	Checkpoint int64  `json:"checkpoint,omitempty"`
	Commit     string `json:"commit"`
	// Time of the checkpoint, or when the files were read.
	Time *metav1.MicroTime `json:"time,omitempty"`
	// Branch and Position are the place in the conversation then.
	Branch   string `json:"branch,omitempty"`
	Position int64  `json:"position,omitempty"`
}

// DiffTotals are sums over all files of a difference.
type DiffTotals struct {
	Files        int64 `json:"files"`
	LinesAdded   int64 `json:"linesAdded"`
	LinesRemoved int64 `json:"linesRemoved"`
	BinaryFiles  int64 `json:"binaryFiles,omitempty"`
	// IgnoredFiles is the number of files that differ and are left out, because .gitignore
	// files ignore them and the task did not start with them.
	IgnoredFiles int64 `json:"ignoredFiles,omitempty"`
	// UncountedFiles is the number of files whose lines are not included: all of them if
	// more files differ than can be compared.
	UncountedFiles int64 `json:"uncountedFiles,omitempty"`
}

// ConversationDiff is what the conversation at To has more than the one at From; negative
// numbers if it has less. The two may be of different tasks.
type ConversationDiff struct {
	FromPosition int64 `json:"fromPosition"`
	ToPosition   int64 `json:"toPosition"`
	// SharedPosition is the last position up to which both have the same messages: those that a
	// fork has from its source, or a branch from another. After it, each has its own; on one
	// branch, it is the smaller of the two positions.
	SharedPosition int64 `json:"sharedPosition"`
	Messages       int64 `json:"messages"`
	ToolCalls      int64 `json:"toolCalls"`
	InputTokens    int64 `json:"inputTokens"`
	OutputTokens   int64 `json:"outputTokens"`
	CostMicroUSD   int64 `json:"costMicroUSD"`
}

// FileDiff is one file of a difference.
type FileDiff struct {
	// Path of the file. One that is not valid UTF-8, or contains control characters, is in
	// git's quoted form. OldPath is the former path of a renamed file.
	Path    string `json:"path"`
	OldPath string `json:"oldPath,omitempty"`
	// Action: Added, Modified, Deleted or Renamed.
	Action string `json:"action"`
	// OldMode and NewMode are git's, such as 100644, 100755, 120000 (a symbolic link) and
	// 160000 (a nested repository); empty where the file does not exist.
	OldMode      string `json:"oldMode,omitempty"`
	NewMode      string `json:"newMode,omitempty"`
	OldBytes     int64  `json:"oldBytes,omitempty"`
	NewBytes     int64  `json:"newBytes,omitempty"`
	Binary       bool   `json:"binary,omitempty"`
	LinesAdded   int64  `json:"linesAdded,omitempty"`
	LinesRemoved int64  `json:"linesRemoved,omitempty"`
	// Hunks, with format=hunks, or Patch, with format=patch, are the content. PatchBytes has
	// a patch that is not valid UTF-8. CutBytes is the size of a content that is left out
	// because it exceeds the limit for one file.
	Hunks      []Hunk `json:"hunks,omitempty"`
	Patch      string `json:"patch,omitempty"`
	PatchBytes []byte `json:"patchBytes,omitempty"`
	CutBytes   int64  `json:"cutBytes,omitempty"`
}

// Hunk is a run of changed lines with the lines around it. Each line begins with a space,
// + or -, or with a backslash for a missing newline at the end of the file.
type Hunk struct {
	OldStart int64    `json:"oldStart"`
	OldLines int64    `json:"oldLines"`
	NewStart int64    `json:"newStart"`
	NewLines int64    `json:"newLines"`
	Section  string   `json:"section,omitempty"`
	Lines    []string `json:"lines"`
}
