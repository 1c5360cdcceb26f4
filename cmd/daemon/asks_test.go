package main

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// asked waits until so many requests are recorded, and returns the last one.
func asked(t *testing.T, w *daemontest.World, n int) (last *daemonv1.ToolRequest) {
	t.Helper()
	w.Server.Until(t, fmt.Sprintf("%d requests are recorded", n), w.UID, func(k *daemontest.Task) bool {
		found := 0
		for _, r := range k.Records {
			if q := r.GetToolRequest(); q != nil {
				found, last = found+1, q
			}
		}
		return found >= n
	})
	return last
}

// TestAnAskedCallOutlivesTheDaemon kills the daemon while a call waits in the hook of its agent: the
// same call waits on, under the same id, and the agent gets its answer, by the hook's exit code.
func TestAnAskedCallOutlivesTheDaemon(t *testing.T) {
	for name, approved := range map[string]bool{"approved": true, "denied": false} {
		t.Run(name, func(t *testing.T) {
			w := daemontest.NewWorld(t, map[string]string{"src/a": "a", "b": "b"})
			w.Agent = "ClaudeCode"
			w.Policy.RiskyTools = []daemonapi.ToolPattern{{Tool: "^Bash$", Input: `rm\s`, Action: v1alpha1.RiskyToolAsk}}
			w.Policy.ApprovalDeadlineSeconds = 600
			p := fakePod(t, w, "risky")
			q := asked(t, w, 1)
			p.sidecar.kill()
			p.startSidecar()
			if again := asked(t, w, 2); again.GetId() != q.GetId() {
				t.Errorf("after the kill the request is %s, want %s", again.GetId(), q.GetId())
			}
			if _, err := os.Stat(w.Path("src")); err != nil {
				t.Errorf("the tool ran before its answer: %v", err)
			}
			w.Server.AnswerRequest(&daemonv1.AnswerRequest{Id: q.GetId(), Approved: approved, By: "ann"})
			p.end()
			if _, err := os.Stat(w.Path("src")); (err != nil) != approved {
				t.Errorf("the tool ran: %v, want %v", err != nil, approved)
			}
			lines := slices.DeleteFunc(w.Lines(), func(l string) bool { return l == "result t-1" })
			want := []string{"user Do it.", "call t-1", "system Clew asks a person before the call of Bash is carried out (request " + q.GetId() + ").",
				"system Request " + q.GetId() + " was " + name + " by ann"}
			if approved {
				want = append(want, "assistant prompt: Do it.") // the fake agent ends at an error of its hook
			}
			if diff := cmp.Diff(want, lines); diff != "" {
				t.Errorf("conversation (-want +got):\n%s\n%s", diff, p.sidecar.out.String())
			}
		})
	}
}
