package sidecar_test

import (
	"bytes"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// busyComparing returns a processor time that passes quickly while the agent's tools work, and not
// otherwise.
func busyComparing() func() time.Duration {
	var used atomic.Int64
	return func() time.Duration {
		if bytes.Contains(debug.Stack(), []byte("(*toolAnswers)")) {
			return time.Duration(used.Add(int64(10 * time.Second)))
		}
		return time.Duration(used.Load())
	}
}

// An agent that has its files compared again and again has a share of the processor for that, and its
// checkpoints have theirs.
func TestComparisonsKeepNoCheckpointWaiting(t *testing.T) {
	w, a := toolWorld(t, map[string]string{"a.txt": "a\n"}, func(w *daemontest.World) {
		w.ProcessorTime = busyComparing()
		w.Policy.EveryToolCalls = 1
	})
	w.Write("a.txt", "changed\n")
	text, failed := call(t, w, nil, "diff", args{})
	expectAnswer(t, text, failed, "+changed")
	text, failed = call(t, w, nil, "diff", args{})
	expectRefusal(t, text, failed, "Nothing was compared: comparing has taken much processor time just now. Go on with your work, and ask again in 60 s or later.")
	text, failed = call(t, w, nil, "checkpoints", args{})
	expectRefusal(t, text, failed, "Nothing was compared")
	for n := range 3 {
		w.Write("a.txt", fmt.Sprint(n))
		a.Call(fmt.Sprint(n))
		a.Recorded()
		a.Next(wire.TypeThaw)
	}
}
