package sidecar_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/refname"
)

// TestAPushThatMeetsDamageHasItVerified: the gitstore has lost the commit that the next checkpoint builds
// on, and nobody else may notice for a day.
func TestAPushThatMeetsDamageHasItVerified(t *testing.T) {
	w := daemontest.NewWorld(t, map[string]string{"folder/one.txt": "1\n"})
	w.Policy.EveryToolCalls = 1
	w.Prepare(1, nil)
	w.Start(1)
	a := w.Dial("s")
	take := func(call, file string) {
		w.Write(file, call)
		a.Call(call)
		a.Recorded()
	}
	take("1", "folder/two.txt")
	w.Server.Until(t, "it is durable", w.UID, func(k *daemontest.Task) bool { return k.Latest().GetDurable() })
	var before int64
	w.Server.Inspect(w.UID, func(k *daemontest.Task) { before = k.Latest().GetNumber() })
	lost := w.Git.Run(t, filepath.Join(w.Git.Dir, "store.git"), "rev-parse", refname.Code(w.UID, before))
	if err := os.Remove(filepath.Join(w.Git.Dir, "store.git", "objects", lost[:2], lost[2:])); err != nil {
		t.Fatal(err)
	}
	w.Server.Verify(func(int64) *daemonv1.VerifyCheckpointResponse {
		return &daemonv1.VerifyCheckpointResponse{Verified: true, Damaged: true}
	})
	take("2", "three.txt")
	w.Server.Until(t, "the server is asked", w.UID, func(k *daemontest.Task) bool { return slices.Contains(k.Verified, before) })
}
