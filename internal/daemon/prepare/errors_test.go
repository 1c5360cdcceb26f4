package prepare

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/worktree"
)

func TestAFullVolumeIsCalledSoWhereverItTurnsOut(t *testing.T) {
	for name, err := range map[string]error{
		"journal": fmt.Errorf("write the journal: %w", &os.PathError{Op: "write", Path: "/volume/journal", Err: syscall.ENOSPC}),
		"quota":   fmt.Errorf("make a folder: %w", syscall.EDQUOT),
		"git":     &worktree.Error{Reason: worktree.StorageFull, Message: "the volume is full while trying to fetch; free space or enlarge the volume"},
		"gitstore": wrapPlace(placeGitstore, &worktree.Error{
			Reason: worktree.StorageFull, Message: "the volume is full while talking to https://gitstore; free space or enlarge the volume",
		}),
	} {
		reason, permanent, message := describe(err)
		if reason != v1alpha1.ReasonVolumeFull || !permanent {
			t.Errorf("%s: %s, permanent %v: %s", name, reason, permanent, message)
		}
		if !strings.HasPrefix(message, "the volume is full") {
			t.Errorf("%s: the message %q does not begin with the cause", name, message)
		}
		if !strings.Contains(message, "enlarge") {
			t.Errorf("%s: the message %q does not say what to do", name, message)
		}
	}
}

// A retry needs as much memory again: somebody has to raise the limit and then resume the
// task.
func TestShortOfMemoryIsTriedAgainWhenSomebodyHasRaisedIt(t *testing.T) {
	short := &worktree.Error{Reason: worktree.MemoryExceeded, Message: "git needs more memory; raise the manager's --daemon-limits"}
	for name, err := range map[string]error{
		"volume": wrapPlace(placeVolume, short), "origin": wrapPlace(placeOrigin, short), "gitstore": wrapPlace(placeGitstore, short), "source": wrapPlace(placeSource, short),
	} {
		reason, permanent, message := describe(fmt.Errorf("prepare: %w", err))
		if reason != v1alpha1.ReasonPrepareFailed || !permanent {
			t.Errorf("%s: %s, permanent %v: %s", name, reason, permanent, message)
		}
		if !strings.Contains(message, "raise the manager's --daemon-limits") {
			t.Errorf("%s: the message %q does not say what to do", name, message)
		}
	}
}

// TestAFailureIsShort: the journal keeps it, and the agent may have named what it is about.
func TestAFailureIsShort(t *testing.T) {
	f := failureOf(&failure{permanent: true, message: strings.Repeat("x", 1<<20)})
	if len(f.Message) > maxFailure {
		t.Errorf("the message has %d bytes", len(f.Message))
	}
}
