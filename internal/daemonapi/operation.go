package daemonapi

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/clew-dev/clew/internal/clip"
)

// The kinds of operations.
const (
	OperationResume = "Resume"
	OperationRewind = "Rewind"
	// OperationRestore restores the workspace after the volume was lost. Its id is the
	// number of the attempt that began it and the UID of its pod.
	OperationRestore = "Restore"
)

// The reasons that a daemon sends with a move of the conversation. In older releases,
// whose operations were not keyed by kind, only the reason distinguished the kinds.
const (
	NoteResume         = "resume"
	NoteRewind         = "rewind"
	NoteRewindComplete = "rewind complete"
	NoteRewindUndone   = "rewind undone"
)

// ResumeRewindID returns the id of the rewind that a resume begins with. No user can choose
// it for a rewind: the API allows no colon in an id.
func ResumeRewindID(resume string) string { return ResumeRewindPrefix + resume }

// ResumeRewindPrefix begins the id of the rewind that a resume begins with.
const ResumeRewindPrefix = "resume:"

// OperationKey returns the key of an operation where operations of several kinds are kept
// together: in a Task's status, in the journal, in the history store. Users choose the ids
// of resumes and rewinds independently, so the id alone does not identify an operation.
// The API allows no slash in an id.
func OperationKey(kind, id string) string { return kind + "/" + id }

// OperationDoneKey returns the key for the end of an operation, where OperationKey only
// means that the operation has passed its point of no return.
func OperationDoneKey(kind, id string) string { return OperationKey(kind, id) + doneSuffix }

const doneSuffix = "/done"

// OperationUndoneKey returns the key for undoing an operation that failed after its
// OperationKey was recorded.
func OperationUndoneKey(kind, id string) string { return OperationKey(kind, id) + "/undone" }

// UpgradeOperationKey returns the key of an operation that an older daemon names by its
// bare id, whose kind follows from the reason the daemon sent. A key is returned as it is.
func UpgradeOperationKey(key, reason string) string {
	id, done := strings.CutSuffix(key, doneSuffix)
	switch {
	case id == "" || strings.Contains(id, "/"):
		return key
	case !done && reason == NoteResume:
		return OperationKey(OperationResume, id)
	case !done && reason == NoteRewind:
		return OperationKey(OperationRewind, id)
	case done && reason == NoteRewindComplete:
		return OperationDoneKey(OperationRewind, id)
	}
	return key
}

// UnknownCommit is the sentence about a rewind to a commit that the task does not know.
func UnknownCommit(id string) string {
	return fmt.Sprintf("this task knows no commit %s: it is neither one of its checkpoints', nor in the history that it started from; name another one, or a checkpoint, and request the rewind again", clip.Marked(id, 40))
}

// PreservedBranch returns the branch that keeps what a rewind discards: the requested
// branch, or one named after the rewind's id.
func PreservedBranch(branch, id string) string { return cmp.Or(branch, "clew/before-"+id) }

// ResumeBranch returns the branch that keeps what a resume from a checkpoint discards. Users choose
// the ids of resumes and rewinds independently: no id makes this the branch of a rewind, or a folder
// of it.
func ResumeBranch(resume string) string { return "clew/before/resume-" + resume }

// What the paths of a rewind are bounded by, as in the API.
const (
	MaxRewindPaths     = 100
	MaxRewindPathBytes = 1024
)
