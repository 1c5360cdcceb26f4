package prepare

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/worktree"
)

// place is the counterpart of a step: the same error means different things depending on
// where it comes from.
type place int

const (
	placeVolume place = iota
	placeServer
	placeGitstore
	placeOrigin
	placeSource // another task's checkpoint in the gitstore
)

// placedError is an error with its place of origin.
type placedError struct {
	place place
	err   error
}

func (e *placedError) Error() string { return e.err.Error() }
func (e *placedError) Unwrap() error { return e.err }

// wrapPlace attaches the place of origin to an error.
func wrapPlace(where place, err error) error {
	if err == nil {
		return nil
	}
	var refused *checkpoint.RefusedError
	if (where == placeGitstore || where == placeSource) && !errors.As(err, &refused) {
		switch worktree.ReasonOf(err) {
		case worktree.RefNotFound, worktree.RepositoryNotFound, worktree.StorageFull:
		default:
			err = checkpoint.GitError(err)
		}
	}
	return &placedError{place: where, err: err}
}

// failure is an error that already carries its reason.
type failure struct {
	reason    string // ReasonPrepareFailed if empty
	permanent bool
	message   string
}

func (f *failure) Error() string { return f.message }

// sourceMissing is the error of a fork when the server does not know the source's
// checkpoint. The manager has seen that checkpoint in the history, so the store has gone
// back in time since; the source's own daemon sends it again when it next runs.
type sourceMissing struct {
	source daemonapi.Source
	err    error
}

func (e *sourceMissing) Error() string {
	var awaited *gatewayclient.AwaitedError
	if errors.As(e.err, &awaited) {
		return awaited.Error() // the task has run before, so its wait is bounded
	}
	return fmt.Sprintf("the history store does not have, or has lost, %s, from which this task starts. That task's pod sends it again, "+
		"within minutes if it is running. If that task has stopped, resume it or, once completed, rewind it to its latest checkpoint. "+
		"If that task or its volume is gone, start a new task from another checkpoint", e.source)
}

func (e *sourceMissing) Unwrap() error { return e.err }

// verdict is the meaning of an error.
type verdict struct {
	reason string
	// permanent: retrying cannot help until somebody acts.
	permanent bool
	// retryable: retrying at once may help.
	retryable bool
}

// judge classifies an error.
func judge(err error) verdict {
	var known *failure
	if errors.As(err, &known) {
		reason := known.reason
		if reason == "" {
			reason = v1alpha1.ReasonPrepareFailed
		}
		return verdict{reason: reason, permanent: known.permanent}
	}
	if missing := (*sourceMissing)(nil); errors.As(err, &missing) {
		return verdict{reason: v1alpha1.ReasonCheckpointNotFound, retryable: errors.Is(err, gatewayclient.ErrSourceAwaited)}
	}
	if errors.Is(err, gatewayclient.ErrFenced) {
		return verdict{reason: v1alpha1.ReasonFenced}
	}
	if worktree.NoSpace(err) {
		return verdict{reason: v1alpha1.ReasonVolumeFull, permanent: true}
	}
	where := placeVolume
	var placed *placedError
	if errors.As(err, &placed) {
		where = placed.place
	}
	if where == placeServer {
		if errors.Is(err, gatewayclient.ErrNotFound) {
			return verdict{reason: v1alpha1.ReasonCheckpointNotFound, permanent: true}
		}
		if errors.Is(err, gatewayclient.ErrInvalid) {
			return verdict{reason: v1alpha1.ReasonPrepareFailed}
		}
		return verdict{reason: v1alpha1.ReasonServerUnreachable, retryable: true}
	}
	var refused *checkpoint.RefusedError
	if errors.As(err, &refused) {
		return verdict{reason: v1alpha1.ReasonGitStoreRefused, permanent: !refused.Retryable, retryable: refused.Retryable}
	}
	return judgeGit(where, worktree.ReasonOf(err))
}

// judgeGit classifies a reason of package worktree at a place.
func judgeGit(where place, reason worktree.Reason) verdict {
	notFound := v1alpha1.ReasonCheckpointNotFound
	if where == placeOrigin {
		notFound = v1alpha1.ReasonRefNotFound
	}
	switch reason {
	case worktree.StorageFull:
		return verdict{reason: v1alpha1.ReasonVolumeFull, permanent: true}
	case worktree.CheckpointCorrupted:
		return verdict{reason: v1alpha1.ReasonCheckpointCorrupted, permanent: true}
	case worktree.PathNotFound:
		return verdict{reason: v1alpha1.ReasonPathNotFound, permanent: true}
	case worktree.PathBlocked:
		return verdict{reason: v1alpha1.ReasonInvalidState, permanent: true}
	case worktree.UnfinishedWork, worktree.RepositoryUnsuited, worktree.CommitMissing:
		return verdict{reason: v1alpha1.ReasonInvalidState, permanent: true}
	case worktree.ReferenceExists, worktree.BranchMoved:
		return verdict{reason: v1alpha1.ReasonBranchExists, permanent: true}
	case worktree.InvalidReference:
		if where == placeVolume {
			return verdict{reason: v1alpha1.ReasonInvalidBranch, permanent: true}
		}
		return verdict{reason: notFound, permanent: true}
	case worktree.RefNotFound, worktree.CheckpointNotFound:
		return verdict{reason: notFound, permanent: true}
	case worktree.InUse, worktree.RestoreIncomplete:
		return verdict{reason: v1alpha1.ReasonPrepareFailed, retryable: true}
	case worktree.WorktreeNotEmpty, worktree.TooManyFiles, worktree.MemoryExceeded:
		return verdict{reason: v1alpha1.ReasonPrepareFailed, permanent: true}
	}
	switch where {
	case placeOrigin:
		switch reason {
		case worktree.RepositoryNotFound, worktree.InvalidURL:
			return verdict{reason: v1alpha1.ReasonRepositoryNotFound, permanent: true}
		case worktree.AuthenticationFailed:
			return verdict{reason: v1alpha1.ReasonAuthenticationFailed, permanent: true}
		case worktree.Unreachable:
			return verdict{reason: v1alpha1.ReasonRepositoryUnreachable, retryable: true}
		}
	case placeGitstore, placeSource:
		switch reason {
		case worktree.RepositoryNotFound:
			return verdict{reason: notFound, permanent: true}
		case worktree.AuthenticationFailed, worktree.Rejected:
			return verdict{reason: v1alpha1.ReasonGitStoreRefused, retryable: true}
		default:
			return verdict{reason: v1alpha1.ReasonGitStoreUnreachable, retryable: true}
		}
	}
	return verdict{reason: v1alpha1.ReasonPrepareFailed}
}

func retryable(err error) bool { return judge(err).retryable }

// describe returns what is reported to the manager about an error.
func describe(err error) (reason string, permanent bool, message string) {
	if err == nil {
		return v1alpha1.ReasonWorkspacePrepared, false, ""
	}
	v := judge(err)
	message = err.Error()
	if v.reason == v1alpha1.ReasonVolumeFull && worktree.ReasonOf(err) == "" {
		message = "the volume is full: enlarge the task's PersistentVolumeClaim, or delete files on it with a pod of your own (" + message + ")"
	}
	return v.reason, v.permanent, message
}

// maxResult is the size in bytes to which the kubelet truncates a termination message.
const maxResult = 4096

// Encode renders a result as a termination message that fits into maxResult, dropping first
// drifted files, then the end of the message.
func Encode(r daemonapi.PrepareResult) ([]byte, error) {
	r.Message = truncate(r.Message, maxResult/2)
	for {
		b, err := json.Marshal(r)
		if err != nil {
			return nil, fmt.Errorf("encode the result: %w", err)
		}
		switch {
		case len(b) <= maxResult:
			return b, nil
		case len(r.DriftedFiles) > 0:
			r.DriftedFiles = r.DriftedFiles[:len(r.DriftedFiles)-1-len(r.DriftedFiles)/16]
			r.DriftedActions = r.DriftedActions[:min(len(r.DriftedActions), len(r.DriftedFiles))]
		case r.Message != "" || r.Checkout == nil || r.Checkout.Message == "":
			r.Message = truncate(r.Message, len(r.Message)/2)
		default:
			checkout := *r.Checkout
			checkout.Message = truncate(checkout.Message, len(checkout.Message)/2)
			r.Checkout = &checkout
		}
	}
}

// truncate shortens a text to at most n bytes, at a character boundary.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.TrimSpace(clip.Bytes(s, n))
}
