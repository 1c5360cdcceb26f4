package cli

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

// since returns what a task changed since the Fork of family.
func since(f *v1alpha1.Fork, files ...historyv1.FileDiff) historyv1.Diff {
	d := historyv1.Diff{From: historyv1.DiffMoment{Task: f.Spec.SourceRef.Name, TaskUID: f.Status.Source.TaskUID, Checkpoint: 3}, Items: files}
	for _, file := range files {
		d.Totals.Files++
		d.Totals.LinesAdded, d.Totals.LinesRemoved = d.Totals.LinesAdded+file.LinesAdded, d.Totals.LinesRemoved+file.LinesRemoved
	}
	return d
}

func TestCompare(t *testing.T) {
	b := newBench(t)
	f := b.family()
	b.try(server.Client.Delete(b.ctx, &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "passkeys"}}))
	file := historyv1.FileDiff{Path: "a.go", Action: "Modified", OldMode: "100644", NewMode: "100644", LinesAdded: 5, LinesRemoved: 1,
		Patch: "diff --git a/a.go b/a.go\n@@ -1 +1 @@\n-\x1b[31mold\n+new\n"}
	r := b.withHistory(map[string]any{
		"GET tasks/oauth/diff": since(f, file),
		"GET taskhistories":    historyv1.TaskHistoryList{Items: []historyv1.TaskHistory{taskHistoryOf("passkeys", f.Status.Tasks[1].UID)}},
	})
	out, _ := b.must("compare", "ways")
	wantText(t, "the comparison", `TASK       STATE       AGENT   FILES   LINES   MESSAGES   TOKENS   COST      TIME
oauth      Running     Exec    1       +5 -1   20         1.2k     $0.50     0s
passkeys   Completed   -       -       -       40         12.3k    $0.0123   2h59m0s
tokens     Pending     -       -       -       0          0        -         0s

oauth, since checkpoint 3 of fix-login:
 a.go   +5 -1
 1 file changed, +5 -1

passkeys: the history has nothing of this kind
tokens: the Fork has not made it yet
`, out)
	wantParts(t, "the requests", strings.Join(r.asked, "\n"),
		"GET tasks/oauth/diff?format=none&from=fix-login%3A3&limit=1000&to=latest&uid="+f.Status.Tasks[0].UID)

	out, _ = b.must("compare", "ways", "--diff")
	wantParts(t, "the differences", out, "diff --git a/a.go b/a.go\n@@ -1 +1 @@\n-\\x1b[31mold\n+new\n")
	out, _ = b.must("compare", "ways", "-o", "json")
	if c := decode[comparison](t, out); len(c.Variants) != 3 || c.Variants[0].Diff.Totals.LinesAdded != 5 || c.Variants[1].Exists || c.Variants[1].Problem == "" {
		t.Errorf("the JSON is %s", out)
	}
	other := since(f, file)
	other.From.TaskUID = "another"
	r.answers["GET tasks/oauth/diff"] = other
	out, _ = b.must("compare", "ways")
	wantParts(t, "the comparison", out, "the source was deleted, and the task that is named fix-login now is another")
	_, _, err := b.clew("", "compare", "nothing")
	wantError(t, err, `there is no fork "nothing"`)
}

func TestPick(t *testing.T) {
	b := newBench(t)
	f := b.family()
	_, _, err := b.clew("", "pick", "ways", "oauth", "--yes")
	wantError(t, err, "has not made all of its tasks")
	ended := b.task("ended", v1alpha1.ReasonCompleted)
	f.Status.Tasks = append(f.Status.Tasks, v1alpha1.ForkedTask{Name: "ended", UID: string(ended.UID)}, v1alpha1.ForkedTask{Name: "by-hand", UID: "another"})
	f.Status.Conditions[0].Status, f.Status.Conditions[0].Reason = metav1.ConditionTrue, v1alpha1.ReasonForked
	b.try(server.Client.Status().Update(b.ctx, f))
	modes := func(want ...v1alpha1.OperatingMode) {
		t.Helper()
		for i, name := range []string{"oauth", "passkeys", "ended", "by-hand", "fix-login"} {
			task := &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: name}}
			if b.get(task); task.Spec.OperatingMode != want[i] {
				t.Errorf("task %s is %s, want %s", name, task.Spec.OperatingMode, want[i])
			}
		}
	}
	const on, off = v1alpha1.OperatingModeRunning, v1alpha1.OperatingModeSuspended
	for _, test := range []struct {
		answer string
		args   []string
		want   string
	}{
		{"", []string{"ways", "nobody"}, `fork ways has no task "nobody"; its tasks are oauth, passkeys, ended, by-hand`},
		{"", []string{"ways", "by-hand"}, "task by-hand was deleted"},
		{"", []string{"ways", "oauth"}, "add --yes"},
		{"n\n", []string{"ways", "oauth"}, "nothing was changed"},
	} {
		_, _, err := b.clew(test.answer, append([]string{"pick"}, test.args...)...)
		wantError(t, err, test.want)
	}
	out, _ := b.must("pick", "ways", "oauth", "--dry-run=server")
	wantText(t, "the dry run", "task.clew.dev/passkeys suspended (server dry run)\ntask.clew.dev/oauth picked (server dry run)\n", out)
	out, _ = b.must("pick", "ways", "oauth", "--branch", "clew/oauth", "--dry-run=client", "-o", "jsonpath={.items[*].spec.operatingMode}")
	wantText(t, "what would be requested", "Suspended", out)
	modes(on, on, on, on, on)
	out, errOut, err := b.clew("y\n", "pick", "ways", "oauth")
	b.try(err)
	wantText(t, "the output", "task.clew.dev/passkeys suspended\ntask.clew.dev/oauth picked\n", out)
	wantParts(t, "the question", errOut, "Picks task oauth, and suspends 1 other task: passkeys.")
	modes(on, off, on, on, on)
	_, _, err = b.clew("", "pick", "ways", "fix-login", "--yes", "--branch", "clew/oauth")
	wantError(t, err, `has no task "fix-login"`)
	_, _, err = b.clew("", "pick", "ways", "ended", "--yes", "--branch", "a..b")
	wantError(t, err, `--branch is "a..b": it must not contain "..", "//" or "@{"; use a branch name such as clew/fix-login`)
	_, _, err = b.clew("", "pick", "ways", "ended", "--yes", "--branch", "refs/tags/a")
	wantError(t, err, "it can only be below refs/heads/ or refs/for/")
	modes(on, off, on, on, on)
	out, _ = b.must("pick", "ways", "passkeys", "--yes", "--branch", "clew/passkeys")
	wantText(t, "the output", "task.clew.dev/oauth suspended\ntask.clew.dev/passkeys picked, and publishing to clew/passkeys requested\n", out)
	modes(off, off, on, on, on)
	task := &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "passkeys"}}
	if b.get(task); task.Spec.Publish == nil || task.Spec.Publish.Branch != "clew/passkeys" || task.Spec.Publish.When != v1alpha1.PublishSuspended {
		t.Errorf("spec.publish of the picked task, which is suspended, is %+v", task.Spec.Publish)
	}
	out, errOut = b.must("pick", "ways", "passkeys")
	wantParts(t, "the note", errOut, "Task passkeys is suspended, and stays so: continue it with `kubectl clew resume passkeys -n "+b.namespace+"`.\n")
	wantText(t, "again", "task.clew.dev/passkeys picked, and published to clew/passkeys as its spec says\n", out)
	_, errOut = b.must("pick", "ways", "oauth")
	wantParts(t, "again", errOut, "Nothing to suspend")
}

// As publish does: what is requested of a task that was rewound is not published.
func TestPickOfARewoundTaskDoesNotPromiseToPublish(t *testing.T) {
	b := newBench(t)
	f := b.family()
	rewound := b.task("rewound", v1alpha1.ReasonRewound)
	f.Status.Tasks = append(f.Status.Tasks, v1alpha1.ForkedTask{Name: "rewound", UID: string(rewound.UID)})
	f.Status.Conditions[0].Status, f.Status.Conditions[0].Reason = metav1.ConditionTrue, v1alpha1.ReasonForked
	b.try(server.Client.Status().Update(b.ctx, f))
	_, _, err := b.clew("", "pick", "ways", "rewound", "--yes", "--branch", "clew/rewound")
	wantError(t, err, "task rewound was rewound and waits for a resume")
	wantError(t, err, "kubectl clew publish rewound --checkpoint NUMBER --branch clew/rewound -n "+b.namespace+"`, and pick it without --branch")
	other := &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "oauth"}}
	if b.get(other); other.Spec.OperatingMode == v1alpha1.OperatingModeSuspended {
		t.Error("the others were suspended")
	}
	rewound.Spec.Publish = &v1alpha1.Publish{ID: "1", Branch: "clew/rewound"}
	b.try(server.Client.Update(b.ctx, rewound))
	out, errOut := b.must("pick", "ways", "rewound", "--yes")
	wantParts(t, "the output", out, "task.clew.dev/rewound picked, and published to clew/rewound as its spec says, but not before it is resumed\n")
	wantParts(t, "the note", errOut, "Task rewound was rewound, and waits for a resume: continue it with `kubectl clew resume rewound -n ")
}
