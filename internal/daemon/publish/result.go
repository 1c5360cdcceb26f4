package publish

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/worktree"
)

// failure is an error that already carries its reason.
type failure struct{ reason, message string }

func (f *failure) Error() string { return f.message }

// gitStoreError is an error of the gitstore.
type gitStoreError struct{ err error }

func (e *gitStoreError) Error() string { return e.err.Error() }
func (e *gitStoreError) Unwrap() error { return e.err }

func fromGitStore(err error) error {
	if err == nil {
		return nil
	}
	if worktree.RemoteDamaged(err) {
		err = &worktree.Error{Reason: worktree.CheckpointCorrupted, Message: "git in the gitstore cannot read all of it", Err: err}
	}
	return &gitStoreError{err}
}

// describe returns what is reported to the manager about an error.
func (p *publisher) describe(err error) (reason, message string, retryable bool) {
	var known *failure
	if errors.As(err, &known) {
		return known.reason, known.message, false
	}
	message = clip.Marked(err.Error(), maxMessage)
	var store *gitStoreError
	if errors.As(err, &store) {
		switch worktree.ReasonOf(err) {
		case worktree.RefNotFound, worktree.RepositoryNotFound:
			return v1alpha1.ReasonCheckpointNotFound, "the gitstore does not have the checkpoint: restore it from a backup, or resume the task until it has another checkpoint; then request it again (" + message + ")", false
		case worktree.CheckpointCorrupted: // it is verified, and healed if there is a copy of what is damaged
			return v1alpha1.ReasonCheckpointCorrupted, fmt.Sprintf("checkpoint %d could not be fetched: %s", p.Pod.Checkpoint, message), true
		}
		return v1alpha1.ReasonGitStoreUnreachable, "the checkpoint could not be fetched from the gitstore: " + message, true
	}
	var refused *worktree.PushRefusedError
	if errors.As(err, &refused) {
		return v1alpha1.ReasonPublishRefused, fmt.Sprintf("the repository refused the push: %s. Remove the cause, then request it again", refused.Answer), false
	}
	switch worktree.ReasonOf(err) {
	case worktree.Diverged:
		return v1alpha1.ReasonDiverged, message, false
	case worktree.AuthenticationFailed:
		return v1alpha1.ReasonPublishUnauthorized, "the repository's host does not let these credentials push: correct the Secret, then request it again (" + message + ")", false
	case worktree.RepositoryNotFound, worktree.InvalidURL:
		return v1alpha1.ReasonRepositoryNotFound, message + ". Remove the cause, then request it again", false
	case worktree.Unreachable:
		return v1alpha1.ReasonRepositoryUnreachable, message, true
	case worktree.CommitMissing:
		return v1alpha1.ReasonCommitNotFound, message + ": resume the task, and have it leave out of its commits what the event HeadNotStored names; or request it again", false
	case worktree.CheckpointCorrupted:
		return v1alpha1.ReasonCheckpointCorrupted, message + ". Restore the gitstore from a backup, or resume the task until it has another checkpoint; then request it again", false
	}
	return v1alpha1.ReasonPublishFailed, message, true
}

const (
	// maxResult is the size in bytes to which the kubelet truncates a termination message.
	maxResult = 4096
	// maxMessage is the length of a message of git.
	maxMessage = 600
)

// clipped shortens a path for a message.
func clipped(path string) string { return clip.Marked(path, 100) }

// Encode renders a result as a termination message that fits into maxResult.
func Encode(r daemonapi.PublishResult) ([]byte, error) {
	for i := range r.Protected {
		r.Protected[i] = clipped(r.Protected[i])
	}
	for {
		b, err := json.Marshal(r)
		if err != nil {
			return nil, fmt.Errorf("encode the result: %w", err)
		}
		switch {
		case len(b) <= maxResult:
			return b, nil
		case len(r.Answer) > 0:
			r.Answer = clip.Bytes(r.Answer, len(r.Answer)/2)
		case len(r.Protected) > 0:
			r.Protected = r.Protected[:len(r.Protected)-1]
		default:
			r.Message = clip.Bytes(r.Message, len(r.Message)/2)
		}
	}
}
