package cli

import (
	"strings"
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func TestQueue(t *testing.T) {
	b := newBench(t)
	_, errOut := b.must("queue")
	wantText(t, "message", "No task of namespace "+b.namespace+" waits for a place.\n", errOut)
	b.task("runs", v1alpha1.ReasonRunning)
	for _, waiting := range []struct {
		name     string
		priority int32
	}{{"a-first", 0}, {"b-second", 0}, {"low", -10}, {"urgent", 10}} {
		task := b.task(waiting.name, v1alpha1.ReasonQueued)
		builders.Priority(waiting.priority)(task)
		b.try(server.Client.Update(b.ctx, task))
	}
	gated := b.task("gated", v1alpha1.ReasonQueued)
	gated.Status.Attempts = []v1alpha1.Attempt{{Number: 1}}
	b.try(server.Client.Status().Update(b.ctx, gated))

	b.because(b.task("of-lead", v1alpha1.ReasonQueued), "the task waits for a place: at most 2 children of lead run at once, as children.atOnce of that task says; of those that wait in a namespace, the one with the highest priority starts first, and among equals the oldest")

	out, errOut := b.must("queue", "--no-headers")
	var order []string
	for line := range strings.Lines(out) {
		order = append(order, strings.Join(strings.Fields(line)[:3], " "))
	}
	wantText(t, "order", "1 urgent 10, 2 a-first 0, 3 b-second 0, 4 of-lead 0, 5 low -10", strings.Join(order, ", "))
	wantParts(t, "the limit that holds a child", out, "  at most 2 children of lead run at once, as children.atOnce of that task says\n")
	wantText(t, "how many run", "1 task of namespace "+b.namespace+" runs, or is about to.\n", errOut)
	out, _ = b.must("queue", "--all-namespaces")
	wantParts(t, "the tasks of all namespaces", out, "POSITION", "NAMESPACE", "LIMIT", b.namespace)
}
