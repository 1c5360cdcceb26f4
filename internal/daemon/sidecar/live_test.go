package sidecar_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// answer waits for the answer to a request for the files as they are.
func answer(t *testing.T, w *daemontest.World, id string) (found *daemonv1.ReportLiveRequest) {
	t.Helper()
	w.Server.Until(t, "the request "+id+" is answered", w.UID, func(k *daemontest.Task) bool {
		i := slices.IndexFunc(k.Live, func(r *daemonv1.ReportLiveRequest) bool { return r.GetId() == id })
		if i >= 0 {
			found = k.Live[i]
		}
		return i >= 0
	})
	return found
}

// TestFilesAsTheyArePushed: the agent is not stopped, and no checkpoint is taken.
func TestFilesAsTheyArePushed(t *testing.T) {
	w := daemontest.NewWorld(t, map[string]string{"a.txt": "a\n"})
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	store := filepath.Join(w.Git.Dir, "store.git")
	show := func(what string) string {
		t.Helper()
		return strings.TrimSpace(w.Git.Run(t, "", "--git-dir", store, "show", "refs/clew/uid-1/live:"+what))
	}
	for _, text := range []string{"first", "second"} { // the ref moves
		w.Write("a.txt", text+"\n")
		w.Server.AskLive(text)
		got := answer(t, w, text)
		if is := strings.TrimSpace(w.Git.Run(t, "", "--git-dir", store, "rev-parse", "refs/clew/uid-1/live")); got.GetCommit() != is || got.GetProblem() != "" {
			t.Errorf("the answer is %v, and the ref is %s", got, is)
		}
		if is := show("a.txt"); is != text {
			t.Errorf("a.txt is %q, want %q", is, text)
		}
	}
	if c := latest(w); c != nil {
		t.Errorf("checkpoint %d was taken", c.GetNumber())
	}

	// A checkpoint builds on what was stored.
	w.Write("b.txt", "b\n")
	w.AskForCheckpoint("asked")
	a.Next(wire.TypeThaw)
	w.Server.Until(t, "the checkpoint is durable", w.UID, durable(1))
	if got := latest(w); got.GetFilesChanged() != 2 {
		t.Errorf("the checkpoint has %d changed files, want 2", got.GetFilesChanged())
	}

	w.Git.SetDown(true)
	w.Server.AskLive("down")
	if got := answer(t, w, "down"); got.GetCommit() != "" || got.GetProblem() == "" {
		t.Errorf("the answer while the gitstore is down is %v, want a problem", got)
	}
	w.Git.SetDown(false)
	a.Close()
	d.End()
}
