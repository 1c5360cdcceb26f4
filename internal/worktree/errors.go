package worktree

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Reason is a constant that says what kind of thing went wrong.
type Reason string

// The reasons an Error can carry.
const (
	// InvalidReference: a branch, tag or commit name that git must not be given.
	InvalidReference Reason = "InvalidReference"
	// ReferenceExists: the agent's repository has a branch that is in the way of
	// the one that is to be made.
	ReferenceExists Reason = "ReferenceExists"
	// InvalidURL: a repository URL that is not plain https, http or ssh.
	InvalidURL Reason = "InvalidURL"
	// RepositoryNotFound: the remote says there is no such repository.
	RepositoryNotFound Reason = "RepositoryNotFound"
	// AuthenticationFailed: the remote wants other credentials.
	AuthenticationFailed Reason = "AuthenticationFailed"
	// RefNotFound: the remote has no such branch, tag or commit.
	RefNotFound Reason = "RefNotFound"
	// Unreachable: the remote did not answer; trying again may help.
	Unreachable Reason = "Unreachable"
	// Rejected: the remote answered and refused a push; the message says why.
	Rejected Reason = "Rejected"
	// WorktreeNotEmpty: Clone found files that it did not put there.
	WorktreeNotEmpty Reason = "WorktreeNotEmpty"
	// WorktreeMissing: the worktree is not there or is not a folder.
	WorktreeMissing Reason = "WorktreeMissing"
	// CheckpointNotFound: this repository does not have the commit.
	CheckpointNotFound Reason = "CheckpointNotFound"
	// CheckpointCorrupted: an object of the checkpoint is missing or damaged.
	CheckpointCorrupted Reason = "CheckpointCorrupted"
	// TooManyFiles: the worktree holds more entries than Config.MaxFiles.
	TooManyFiles Reason = "TooManyFiles"
	// TooMuchChanged: a brief checkpoint would have to read too much.
	TooMuchChanged Reason = "TooMuchChanged"
	// StorageFull: no space or quota is left on the volume.
	StorageFull Reason = "StorageFull"
	// InUse: another process holds the repository.
	InUse Reason = "InUse"
	// RestoreIncomplete: after a restore the worktree differs from the target.
	RestoreIncomplete Reason = "RestoreIncomplete"
	// MemoryExceeded: git needs more memory than it may use. Any operation may find that.
	MemoryExceeded Reason = "MemoryExceeded"
	// GitFailed: git or the file system failed in a way not foreseen above.
	GitFailed Reason = "GitFailed"
)

// Error is what every method of Repo returns for a failure that has a reason.
// Message is a sentence: what is wrong, where, what to do. It holds no secrets.
type Error struct {
	Reason  Reason
	Message string
	Err     error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// ReasonOf returns the reason that err carries, or "" if it carries none.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

func fail(reason Reason, err error, format string, args ...any) *Error {
	return &Error{Reason: reason, Message: fmt.Sprintf(format, args...), Err: err}
}

// failIO wraps an error of the file system, telling a full volume from the rest.
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

// NoSpace reports whether err is one of the file system's that say that no space
// or quota is left.
func NoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// outOfSpace tells from git's words whether the volume is full.
func outOfSpace(text string) bool {
	return strings.Contains(text, "No space left on device") || strings.Contains(text, "Disk quota exceeded")
}
