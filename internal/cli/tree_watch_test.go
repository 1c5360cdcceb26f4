package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// become writes a task's condition Succeeded.
func (b *bench) become(task *v1alpha1.Task, reason string) {
	b.Helper()
	b.get(task)
	setSucceeded(task, reason)
	b.try(server.Client.Status().Update(b.ctx, task))
}

func TestAWatchedTreePrintsWhatChangesUntilAllHaveEnded(t *testing.T) {
	b := newBench(t)
	lead := b.member("lead", nil, v1alpha1.ReasonRunning)
	first := b.member("lead-first", lead, v1alpha1.ReasonRunning)
	second := b.member("lead-second", lead, v1alpha1.ReasonQueued)
	stranger := b.task("stranger", v1alpha1.ReasonRunning)
	w := b.start("tree", "--contract", "port", "--watch")
	w.waitFor("TASK", "└─ lead-second")

	b.become(stranger, v1alpha1.ReasonSuspended)
	b.become(first, v1alpha1.ReasonCompleted)
	w.waitFor("\n2026-11-21 12:00:00  lead-first: Completed, phase Execute, 0 checkpoints, 0 messages, 0 tokens\n")
	b.try(server.Client.Delete(b.ctx, second))
	w.waitFor("\n2026-11-21 12:00:00  lead-second: Deleted\n")
	b.get(lead)
	lead.Status.Contract.Phase = v1alpha1.PhaseReview
	b.try(server.Client.Status().Update(b.ctx, lead))
	w.waitFor("  contract port: phase Review\n", "  lead: Running, phase Review,")
	b.become(lead, v1alpha1.ReasonAgentFailed)

	out := w.end()
	wantParts(t, "the last line", out, "  lead: AgentFailed, phase Review,")
	if strings.Count(out, "lead-first: ") != 1 || strings.Contains(out, "stranger") || strings.Count(out, "STATE") != 2 {
		t.Errorf("what has not changed, or is of another contract, was printed:\n%s", out)
	}
}

func TestAWatchedTreeEndsWhenItIsInterrupted(t *testing.T) {
	b := newBench(t)
	b.task("works", v1alpha1.ReasonRunning)
	w := b.start("tree", "-w")
	w.waitFor("works")
	w.interrupt()
	w.end()
}

func TestATreeOfWhichAllHasEndedIsDrawnOnce(t *testing.T) {
	b := newBench(t)
	_, errOut := b.must("tree", "--watch")
	wantParts(t, "standard error", errOut, "There are no tasks in namespace "+b.namespace)
	b.task("done", v1alpha1.ReasonCompleted)
	out, _ := b.must("tree", "--watch")
	wantNames(t, out, "done")
	_, _, err := b.clew("", "tree", "--watch", "-o", "json")
	wantError(t, err, "--watch draws a table: leave out -o json")
	_, _, err = b.clew("", "tree", "nobody", "--watch")
	wantError(t, err, `there is no task and no fork "nobody"`)
}

// A task that is suspended goes on some day, and so does a Fork that has yet to make its tasks.
func TestWhatHasYetToEndIsWatched(t *testing.T) {
	for name, test := range map[string]struct {
		node taskNode
		want bool
	}{
		"a task that runs":            {*nodeOf(inState(v1alpha1.ReasonRunning)), true},
		"a suspended one":             {*nodeOf(inState(v1alpha1.ReasonSuspended)), true},
		"one that has completed":      {*nodeOf(inState(v1alpha1.ReasonCompleted)), false},
		"one that has failed":         {*nodeOf(inState(v1alpha1.ReasonAgentFailed)), false},
		"one that is yet to be made":  {taskNode{Name: "a", Fork: "f"}, true},
		"an ended one, above another": {taskNode{ended: true, Tasks: []*taskNode{{}}}, true},
	} {
		if got := test.node.unfinished(); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// inState returns a task whose condition Succeeded has the reason.
func inState(reason string) *v1alpha1.Task {
	task := &v1alpha1.Task{}
	setSucceeded(task, reason)
	return task
}

func TestOnATerminalTheTreeIsDrawnInPlaceOfTheFormerOne(t *testing.T) {
	var out bytes.Buffer
	o := &tree{plugin: &plugin{clock: time.Now}, output: &enumFlag{}}
	o.Out = &out
	c := &treeChanges{tree: o, redraws: true, height: 4}
	show := func(v treeView, last bool) {
		if err := c.show(v, last); err != nil {
			t.Fatal(err)
		}
	}
	v := treeView{roots: []*taskNode{{Name: "a"}, {Name: "b"}, {Name: "c"}}}
	show(v, false)
	wantParts(t, "the drawing", out.String(), "\x1b[H\x1b[2JTASK", "\na ", "… 2 more lines: the terminal has no room for them\n")
	if strings.Contains(out.String(), "\nb ") {
		t.Errorf("it is larger than the terminal:\n%s", out.String())
	}
	out.Reset()
	show(v, true)
	wantParts(t, "what stays", out.String(), "\x1b[H\x1b[2JTASK", "\na ", "\nb ", "\nc ")
}
