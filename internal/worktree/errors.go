package worktree

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Reason classifies an error, so that callers can decide on a constant.
type Reason string

// The reasons an Error can carry.
const (
	// InvalidReference: a name is not valid for a branch, tag or commit.
	InvalidReference Reason = "InvalidReference"
	// ReferenceExists: the agent's repository has a branch that conflicts with the
	// new one.
	ReferenceExists Reason = "ReferenceExists"
	// BranchMoved: the agent's repository has a branch of that name that is elsewhere.
	BranchMoved Reason = "BranchMoved"
	// RepositoryUnsuited: the agent's repository is not one that Clew writes to.
	RepositoryUnsuited Reason = "RepositoryUnsuited"
	// UnfinishedWork: the agent's repository is in the middle of a merge, a rebase or the like.
	UnfinishedWork Reason = "UnfinishedWork"
	// InvalidURL: a repository URL is not a plain https, http or ssh URL, or redirects
	// to an address that must be set instead.
	InvalidURL Reason = "InvalidURL"
	// RepositoryNotFound: the remote reports that the repository does not exist.
	RepositoryNotFound Reason = "RepositoryNotFound"
	// AuthenticationFailed: the remote rejected the credentials, or is not a known host.
	AuthenticationFailed Reason = "AuthenticationFailed"
	// RefNotFound: the remote has no such branch, tag or commit.
	RefNotFound Reason = "RefNotFound"
	// Unreachable: the remote did not answer; a retry may succeed.
	Unreachable Reason = "Unreachable"
	// Rejected: the remote refused a push; the message says why.
	Rejected Reason = "Rejected"
	// Diverged: the remote's branch has commits that a push would discard.
	Diverged Reason = "Diverged"
	// Protected: a push would change protected files.
	Protected Reason = "Protected"
	// CommitMissing: a commit of the agent was not stored with the checkpoint.
	CommitMissing Reason = "CommitMissing"
	// WorktreeNotEmpty: Clone found files that it did not create.
	WorktreeNotEmpty Reason = "WorktreeNotEmpty"
	// WorktreeMissing: the worktree does not exist or is not a folder.
	WorktreeMissing Reason = "WorktreeMissing"
	// CheckpointNotFound: this repository does not have the commit.
	CheckpointNotFound Reason = "CheckpointNotFound"
	// CheckpointCorrupted: an object of the checkpoint is missing or damaged.
	CheckpointCorrupted Reason = "CheckpointCorrupted"
	// HeadNotStored: the agent's own commit, or something that it reaches, cannot be stored.
	HeadNotStored Reason = "HeadNotStored"
	// TooManyFiles: the worktree holds more entries than Config.MaxFiles.
	TooManyFiles Reason = "TooManyFiles"
	// TooMuchChanged: a brief checkpoint would have to read too much.
	TooMuchChanged Reason = "TooMuchChanged"
	// StorageFull: no space or quota is left on the volume.
	StorageFull Reason = "StorageFull"
	// InUse: another process has locked the repository.
	InUse Reason = "InUse"
	// RestoreIncomplete: after a restore the worktree differs from the target.
	RestoreIncomplete Reason = "RestoreIncomplete"
	// PathNotFound: a path selects a file neither of the target nor of the worktree.
	PathNotFound Reason = "PathNotFound"
	// PathBlocked: a file that must stay is where a restore would create another one.
	PathBlocked Reason = "PathBlocked"
	// MemoryExceeded: git needs more memory than it may use. Any operation may fail so.
	MemoryExceeded Reason = "MemoryExceeded"
	// GitFailed: git or the file system failed in any other way.
	GitFailed Reason = "GitFailed"
)

// Error is the error that the methods of Repo return for a failure with a reason.
// Message is a sentence that says what is wrong, where, and what to do. It contains
// no secrets.
type Error struct {
	Reason  Reason
	Message string
	Err     error
}

// Error returns the message and, if there is one, the underlying error.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

// Unwrap returns the underlying error, which may be nil.
func (e *Error) Unwrap() error { return e.Err }

// ReasonOf returns the reason that err carries, or "" if it carries none.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

// fail returns an Error with a formatted message.
func fail(reason Reason, err error, format string, args ...any) *Error {
	return &Error{Reason: reason, Message: fmt.Sprintf(format, args...), Err: err}
}

// failIO wraps an error of the file system as StorageFull or GitFailed. An error that
// has a reason, or nil, is returned as it is. format completes "cannot …".
func failIO(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if ReasonOf(err) != "" {
		return err
	}
	if NoSpace(err) {
		return fail(StorageFull, err, "the volume is full while trying to "+format+"; free space or enlarge the volume", args...)
	}
	return fail(GitFailed, err, "cannot "+format, args...)
}

// NoSpace reports whether err means that no space or quota is left on the file
// system.
func NoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// outOfSpace reports whether git's output says that the volume is full.
func outOfSpace(text string) bool {
	return strings.Contains(text, "No space left on device") || strings.Contains(text, "Disk quota exceeded")
}
