package cli

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// starts creates a task that starts from checkpoint 3, message 12, of another one.
func (b *bench) starts(name, source, uid, fork string) *v1alpha1.Task {
	b.Helper()
	task := builders.Task(name, builders.InNamespace(b.namespace), builders.StartFrom(source, ""), func(t *v1alpha1.Task) {
		if fork != "" {
			t.Spec.StartFrom.Fork = &v1alpha1.ForkOrigin{Name: fork, UID: "uid-of-" + fork}
		}
	})
	b.try(server.Client.Create(b.ctx, task))
	if uid != "" {
		task.Status.Source = &v1alpha1.SourceStatus{TaskUID: uid, Checkpoint: 3, Commit: "c0ffee", Position: 12}
		setSucceeded(task, v1alpha1.ReasonRunning)
		task.Status.CheckpointCount, task.Status.MessageCount = 2, 20
		task.Status.InputTokens, task.Status.OutputTokens, task.Status.CostMicroUSD = 1000, 234, 500_000
		b.try(server.Client.Status().Update(b.ctx, task))
	}
	return task
}

// family creates a source with a Fork of three tasks, one of which is not made yet and one of
// which has a descendant, and a task whose source is deleted.
func (b *bench) family() *v1alpha1.Fork {
	b.Helper()
	source := b.task("fix-login", v1alpha1.ReasonCompleted)
	oauth := b.starts("oauth", "fix-login", string(source.UID), "ways")
	passkeys := b.starts("passkeys", "fix-login", string(source.UID), "ways")
	b.starts("oauth-again", "oauth", string(oauth.UID), "")
	b.starts("by-hand", "fix-login", string(source.UID), "")
	b.starts("orphan", "gone", "uid-of-gone", "")
	b.starts("early", "nowhere", "", "")
	f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "ways"}, Spec: v1alpha1.ForkSpec{
		SourceRef: v1alpha1.NameReference{Name: "fix-login"}, Variants: []v1alpha1.ForkVariant{{Name: "oauth"}, {Name: "passkeys"}, {Name: "tokens"}},
	}}
	b.try(server.Client.Create(b.ctx, f))
	f.Status.Source = &v1alpha1.SourceStatus{TaskUID: string(source.UID), Checkpoint: 3, Commit: "c0ffee", Position: 12}
	f.Status.Tasks = []v1alpha1.ForkedTask{{Name: "oauth", UID: string(oauth.UID)}, {Name: "passkeys", UID: string(passkeys.UID)}}
	f.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ForkComplete, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonTaskExists, LastTransitionTime: metav1.NewTime(noon)}}
	b.try(server.Client.Status().Update(b.ctx, f))
	return f
}

func TestTree(t *testing.T) {
	b := newBench(t)
	b.family()
	b.withHistory(map[string]any{"GET taskhistories": historyv1.TaskHistoryList{Items: []historyv1.TaskHistory{taskHistoryOf("gone", "uid-of-gone"), taskHistoryOf("gone", "another")}}})
	out, errOut := b.must("tree")
	wantTree(t, out, `TASK                STARTS FROM                          STATE        CHECKPOINTS   MESSAGES   TOKENS   COST      AGE
fix-login           -                                    Completed    0             40         0        -         ?
├─ by-hand          checkpoint 3, message 12             Running      2             20         1.2k     $0.50     ?
├─ oauth            checkpoint 3, message 12, fork ways  Running      2             20         1.2k     $0.50     ?
│  └─ oauth-again   checkpoint 3, message 12             Running      2             20         1.2k     $0.50     ?
├─ passkeys         checkpoint 3, message 12, fork ways  Running      2             20         1.2k     $0.50     ?
└─ tokens           checkpoint 3, message 12, fork ways  TaskExists   0             0          0        -         -
gone                -                                    Completed    4             40         12.3k    $0.0123   3h
└─ orphan           checkpoint 3, message 12             Running      2             20         1.2k     $0.50     ?
nowhere             -                                    NotFound     0             0          0        -         -
└─ early            -                                    Pending      0             0          0        -         ?
`)
	wantText(t, "standard error", "", errOut)

	out, _ = b.must("tree", "oauth")
	wantNames(t, out, "oauth", "└─ oauth-again")
	out, _ = b.must("tree", "ways")
	wantNames(t, out, "fix-login", "├─ oauth", "│ └─ oauth-again", "├─ passkeys", "└─ tokens")
	out, _ = b.must("tree", "fork/ways", "-o", "json")
	if found := decode[taskTree](t, out); len(found.Tasks) != 1 || len(found.Tasks[0].Tasks) != 3 || found.Tasks[0].Tasks[0].Checkpoint != 3 {
		t.Errorf("the JSON is %s", out)
	}
	_, _, err := b.clew("", "tree", "nobody")
	wantError(t, err, `there is no task and no fork "nobody"`)
	_, _, err = b.clew("", "tree", "fork/nobody")
	wantError(t, err, `there is no fork "nobody" in namespace `)
}

// TestARefusedForkOfATaskThatIsGone: it is drawn below the task whose UID it names.
func TestARefusedForkOfATaskThatIsGone(t *testing.T) {
	b := newBench(t)
	b.starts("orphan", "gone", "uid-of-gone", "")
	f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "again"}, Spec: v1alpha1.ForkSpec{
		SourceRef: v1alpha1.NameReference{Name: "gone"}, TaskUID: "uid-of-gone", Variants: []v1alpha1.ForkVariant{{Name: "again"}},
	}}
	b.try(server.Client.Create(b.ctx, f))
	last := taskHistoryOf("gone", "uid-of-gone")
	last.State = "Running"
	b.withHistory(map[string]any{"GET taskhistories": historyv1.TaskHistoryList{Items: []historyv1.TaskHistory{last}}})
	out, _ := b.must("tree")
	wantNames(t, out, "gone", "├─ again", "└─ orphan")
	wantParts(t, "the state of the task that is gone", squeezed(out), "gone - Deleted 4 40")
}

// TestTreeWithoutHistory: a source that is gone is drawn by its name.
func TestTreeWithoutHistory(t *testing.T) {
	b := newBench(t)
	_, errOut := b.must("tree")
	wantParts(t, "standard error", errOut, "There are no tasks in namespace "+b.namespace)
	b.starts("orphan", "gone", "uid-of-gone", "")
	out, _ := b.must("tree")
	wantNames(t, out, "gone", "└─ orphan")
	wantParts(t, "the tree", out, "Deleted")
}

// TestTasksThatNameEachOtherAreDrawn: neither ever starts.
func TestTasksThatNameEachOtherAreDrawn(t *testing.T) {
	b := newBench(t)
	b.starts("one", "two", "", "")
	b.starts("two", "one", "", "")
	out, _ := b.must("tree")
	wantNames(t, out, "two", "└─ one")
}

// wantTree compares a table, but for the ages of objects that the test has just created and the
// widths of columns.
func wantTree(t *testing.T, got, want string) {
	t.Helper()
	rows := func(text string) (rows [][]string) {
		for line := range strings.Lines(text) {
			rows = append(rows, cells(line))
		}
		return rows
	}
	if diff := cmp.Diff(rows(want), rows(strings.ReplaceAll(got, "<invalid>", "?"))); diff != "" {
		t.Errorf("the tree (-want +got):\n%s", diff)
	}
}

// wantNames compares the first column of a table.
func wantNames(t *testing.T, out string, want ...string) {
	t.Helper()
	var got []string
	for line := range strings.Lines(out) {
		got = append(got, cells(line)[0])
	}
	if diff := cmp.Diff(want, got[1:]); diff != "" {
		t.Errorf("the tasks (-want +got):\n%s", diff)
	}
}

// cells returns the columns of a line of a table.
func cells(line string) []string {
	line = strings.ReplaceAll(strings.TrimSpace(line), "│  ", "│ ")
	return regexp.MustCompile(` {2,}`).Split(line, -1)
}

// TestWhatStartedFromAFormerTaskIsBelowTheOneThatContinuesIt: the status of the one names the former's
// UID, whichever of the two was applied again first.
func TestWhatStartedFromAFormerTaskIsBelowTheOneThatContinuesIt(t *testing.T) {
	source := builders.Task("source", builders.WithUID("new"), func(t *v1alpha1.Task) {
		t.Status.Adoption = &v1alpha1.AdoptionStatus{TaskUID: "former"}
	})
	fork := builders.Task("fork", builders.WithUID("fork"), builders.StartFrom("source", ""), func(t *v1alpha1.Task) {
		t.Status.Source = &v1alpha1.SourceStatus{TaskUID: "former", Checkpoint: 3}
	})
	roots := newLineage([]v1alpha1.Task{*fork, *source}, nil).roots()
	if len(roots) != 1 || roots[0].Name != "source" || len(roots[0].Tasks) != 1 || roots[0].Tasks[0].Name != "fork" {
		t.Errorf("the roots are %+v", roots)
	}
}

// TestTreeOfAContract: children are drawn below their supervisor, and what was forked from one below that.
func TestTreeOfAContract(t *testing.T) {
	b := newBench(t)
	lead := b.member("lead", nil, v1alpha1.ReasonRunning)
	first := b.member("lead-first", lead, v1alpha1.ReasonCompleted)
	b.member("lead-second", lead, v1alpha1.ReasonRunning)
	fork := b.starts("lead-first-again", "lead-first", string(first.UID), "")
	fork.Status.Contract = &v1alpha1.ContractStatus{Name: "port", Phase: v1alpha1.PhaseReview}
	b.try(server.Client.Status().Update(b.ctx, fork))
	b.task("stranger", v1alpha1.ReasonRunning)

	out, _ := b.must("tree", "--contract", "port")
	wantNames(t, out[strings.Index(out, "TASK "):], "lead", "├─ lead-first", "│ └─ lead-first-again", "└─ lead-second")
	wantParts(t, "the tree", squeezed(out), "TASK PHASE STARTS FROM STATE", "lead Execute - Running", "lead-first-again Review checkpoint 3, message 12 Running")
	out, _ = b.must("tree")
	wantParts(t, "the whole tree", squeezed(out), "stranger - - Running")
	_, _, err := b.clew("", "tree", "--contract", "none")
	wantError(t, err, "no task of namespace "+b.namespace+" belongs to the contract none")
	_, _, err = b.clew("", "tree", "lead", "--contract", "port")
	wantError(t, err, "name either a task or a contract")
}
