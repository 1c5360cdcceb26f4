package checkpoint_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/worktree"
)

// printed is the error of a git that printed something.
type printed string

func (p printed) Error() string  { return "git push: " + string(p) }
func (p printed) Stderr() string { return string(p) }

func TestGitError(t *testing.T) {
	git := func(reason worktree.Reason, text string) error {
		return &worktree.Error{Reason: reason, Message: "the repository refused the push", Err: printed(text)}
	}
	tests := []struct {
		name                       string
		err                        error
		fenced, refused, retryable bool
	}{
		{"unreachable", git(worktree.Unreachable, "fatal: unable to access: Failed to connect"), false, false, false},
		{"stale, in words", git(worktree.Rejected, "remote: clew: StaleAttempt: attempt 3 was seen"), true, false, false},
		{"stale, by status", git(worktree.GitFailed, "fatal: unable to access 'x': The requested URL returned error: 409"), true, false, false},
		{"pod that is gone", git(worktree.Rejected, "remote: clew: PodGone: the pod does not exist any more"), true, false, false},
		{"quota", git(worktree.Rejected, "remote: clew: QuotaExceeded: the namespace is full"), false, true, true},
		{"immutable", git(worktree.Rejected, "POST git-receive-pack\nremote: clew: RefImmutable: it has another value"), false, true, false},
		{"corrupt", git(worktree.Rejected, "remote: fatal: pack has bad object at offset 12"), false, true, false},
		{"no token", git(worktree.AuthenticationFailed, "fatal: Authentication failed for 'https://x'"), false, true, true},
		{"words that git did not print on a line of their own", git(worktree.GitFailed, "fatal: bad object a: remote: clew: StaleAttempt: because attempt 9 has been seen"), false, false, false},
		{"words that git did not print", fmt.Errorf("read a: remote: clew: PodGone: it is gone: %w", git(worktree.Unreachable, "fatal: x")), false, false, false},
		{"words of no git", errors.New("read a\nremote: clew: PodGone: it is gone"), false, false, false},
		{"rejected for unknown reasons", git(worktree.Rejected, "! [remote rejected]"), false, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := checkpoint.GitError(tt.err)
			var refused *checkpoint.RefusedError
			if errors.Is(err, gatewayclient.ErrFenced) != tt.fenced || errors.As(err, &refused) != tt.refused {
				t.Fatal(err)
			}
			if refused != nil && refused.Retryable != tt.retryable {
				t.Fatal(err)
			}
		})
	}
	if checkpoint.GitError(nil) != nil {
		t.Fatal("an error out of nothing")
	}
}

func TestFullQuotaKeepsTheGitstoreMessage(t *testing.T) {
	err := checkpoint.GitError(&worktree.Error{Reason: worktree.Unreachable, Message: "the repository https://gitstore cannot be reached",
		Err: printed("remote: clew: QuotaExceeded: the quota of the namespace team is used up; ask for a larger one\n" +
			"fatal: unable to access 'https://gitstore': The requested URL returned error: 507")})

	want := "the gitstore refuses the push: QuotaExceeded: the quota of the namespace team is used up; ask for a larger one"
	if err.Error() != want {
		t.Errorf("the error is\n%s\nwant\n%s", err, want)
	}
}
