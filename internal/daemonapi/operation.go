package daemonapi

import (
	"cmp"
	"strings"
)

// Kinds of operations.
const (
	OperationResume = "Resume"
	OperationRewind = "Rewind"
	// OperationRestore brings the workspace of a lost volume back. Its id is the
	// number of the attempt that began it and the UID of its pod.
	OperationRestore = "Restore"
)

// Reasons that a daemon gives the server when it notes an operation. Before
// operations were keyed by kind, they were all that told the kinds apart.
const (
	NoteResume         = "resume"
	NoteRewind         = "rewind"
	NoteRewindComplete = "rewind complete"
	NoteRewindUndone   = "rewind undone"
)

// OperationKey names an operation wherever operations of several kinds are kept
// together: in a Task's status, in the journal, in the history store. Users
// choose the ids of resumes and rewinds independently, so the id alone does not
// identify an operation. The API allows no slash in an id.
func OperationKey(kind, id string) string { return kind + "/" + id }

// OperationDoneKey names the end of an operation whose OperationKey only says
// that its point of no return has passed.
func OperationDoneKey(kind, id string) string { return OperationKey(kind, id) + doneSuffix }

const doneSuffix = "/done"

// OperationUndoneKey names the undoing of an operation that failed after its
// OperationKey was noted.
func OperationUndoneKey(kind, id string) string { return OperationKey(kind, id) + "/undone" }

// UpgradeOperationKey is the key of an operation that an old daemon names by its
// bare id, as told by the reason the daemon gave. Keys are returned as they are.
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

// PreservedBranch is the branch that keeps what stood before a rewind: the one
// that was asked for, or one named after the rewind's id.
func PreservedBranch(branch, id string) string { return cmp.Or(branch, "clew/before-"+id) }
