package sidecar_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/wire"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// A person may take hours. A server that has lost the request since has it again, although its record has
// left the spool.
func TestARequestOutlivesTheLossOfItsRecord(t *testing.T) {
	w := askWorld(t, "ClaudeCode")
	w.Margin = daemonapi.SpoolMargin{Bytes: 1, Seconds: 1}
	d := w.Start(1)
	a := w.Dial("s")
	before := int64(0)
	w.Server.Inspect(w.UID, func(k *daemontest.Task) { before = k.Last() })
	hook := pushHook(t.Context(), w, "t-1")
	q := awaitRequest(t, w, 1)
	long := strings.Repeat("x", wire.MaxChunk)
	for range (9 << 20) / wire.MaxChunk {
		a.Say(long)
	}
	a.Recorded()
	gomega.NewWithT(t).Eventually(func() ([]string, error) { return filepath.Glob(filepath.Join(w.Root, "clew", "spool", "*.kept")) }, 20*time.Second, 5*time.Millisecond).
		ShouldNot(gomega.BeEmpty())
	w.Server.RollBack(w.UID, before)
	a.Say(long)
	if again := awaitRequest(t, w, 1); again.GetId() != q.GetId() {
		t.Errorf("the server has the request %s, want %s", again.GetId(), q.GetId())
	}
	w.Server.AnswerRequest(&daemonv1.AnswerRequest{Id: q.GetId(), By: "alice"})
	expectHookAnswer(t, hook, "The call of Bash was denied by alice. Do not make it again; go on without it.")
	finish(a, d, 0)
}

// A hook may be gone before there is room on the volume for the record of its call. Nobody is asked about it
// then, and another call may be.
func TestARequestThatCannotBeRecordedHoldsNoPlace(t *testing.T) {
	w := askWorld(t, "ClaudeCode")
	d := w.Start(1)
	a := w.Dial("s")
	spool := filepath.Join(w.Root, "clew", "spool")
	for full := false; !full; {
		a.Say(strings.Repeat("x", wire.MaxChunk))
		a.Recorded()
		segments, _ := filepath.Glob(filepath.Join(spool, "*.log"))
		info, err := os.Stat(segments[len(segments)-1])
		full = err == nil && info.Size() >= 4<<20
	}
	var inTheWay []string // of the next segment
	for n := range 100 {
		path := filepath.Join(spool, fmt.Sprintf("%020d.log.new", n))
		if err := os.MkdirAll(filepath.Join(path, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
		inTheWay = append(inTheWay, path)
	}
	// ended lists whether each request has ended.
	ended := func() (all []bool) {
		state := journal.State{}
		if raw, err := os.ReadFile(filepath.Join(w.Root, "clew", "journal.json")); err != nil || json.Unmarshal(raw, &state) != nil || state.Requests == nil {
			return nil
		}
		for _, r := range state.Requests.List {
			all = append(all, r.Ended)
		}
		return all
	}
	g := gomega.NewWithT(t)
	ctx, cancel := context.WithCancel(t.Context())
	hook := pushHook(ctx, w, "t-1")
	g.Eventually(ended, 20*time.Second, 5*time.Millisecond).Should(gomega.Equal([]bool{false}))
	cancel()
	<-hook
	g.Eventually(ended, 20*time.Second, 5*time.Millisecond).Should(gomega.Equal([]bool{true}))
	for _, path := range inTheWay {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	finish(a, d, 0)
	if all, _ := requestsOf(w); all != nil {
		t.Errorf("somebody is asked: %v", all)
	}
}
