package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

// effect is the history API's answer about a rewind of everything to checkpoint 1.
func effect() historyv1.RewindPreview {
	first, last := entry(5, "user", "Now add tests."), entry(9, "assistant", "All tests pass.")
	preview := historyv1.RewindPreview{
		Scope: "Both", To: historyv1.RewindPoint{Checkpoint: 1}, Keeps: historyv1.KeptState{Preserve: "Branch", Branch: "clew/before-cli-abcdefgh"},
		Files: &historyv1.RewoundFiles{Totals: historyv1.DiffTotals{Files: 20, LinesAdded: 30, LinesRemoved: 12}},
		Conversation: &historyv1.RewoundConversation{FromPosition: 9, ToPosition: 4, Dropped: 5, First: &first, Last: &last,
			ToolCalls: 2, InputTokens: 1200, OutputTokens: 90},
		Stops: &historyv1.StoppedWork{Attempt: 2, ToolCalls: []historyv1.ToolCall{{ID: "1", Name: "Bash", Input: "make test\n"}}},
	}
	for i := range 15 {
		preview.Files.Items = append(preview.Files.Items, historyv1.FileDiff{Path: fmt.Sprintf("src/%02d.go", i), Action: "Deleted", LinesRemoved: 3})
	}
	return preview
}

func TestRewindShowsWhatItWouldDo(t *testing.T) {
	b := newBench(t)
	task := b.task("wanderer", v1alpha1.ReasonRunning)
	b.checkpoint(task, 1)
	r := b.withHistory(map[string]any{"GET tasks/wanderer/diff/rewind": effect()})
	out, errOut := b.must("rewind", "wanderer", "--to", "1", "--dry-run=client")
	wantText(t, "standard error", "", errOut)
	wantText(t, "query", "checkpointRef=wanderer-1&id=cli-abcdefgh&limit=15&preserve=Branch&scope=Both&whenRunning=Stop", r.query())
	wantParts(t, "the preview", out, "  moved back          to message 4, the end of its turn: after it, a tool call has no result yet\n")
	_, preview, _ := strings.Cut(out, "  rewinds")
	wantText(t, "the preview", `             the files, the agent's own state and the conversation
  conversation        keeps 4 of 9 messages; 5 go, with 2 tool calls, 1.2k tokens in and 90 out
  first to go         5 user: Now add tests.
  last to go          9 assistant: All tests pass.
  preserves           the current state as a checkpoint, and as branch clew/before-ID in the agent's repository
  branches            of the agent's repository, its tags and stashes become the checkpoint's; newer ones are only in the checkpoint of the current state
  the agent           is stopped first, then continues from there (the task is Running now)
  in progress         Bash make test
  changes             20 files changed, +30 -12
    src/00.go (deleted)   +0 -3
`, preview[:strings.Index(preview, "    src/01.go")])
	wantParts(t, "the preview", out, "    src/14.go (deleted)   +0 -3\n    and 5 more files\n")
	if b.get(task); task.Spec.Rewind != nil {
		t.Errorf("a dry run requested %+v", task.Spec.Rewind)
	}

	// What would be requested.
	out, _ = b.must("rewind", "wanderer", "--to", "1", "--dry-run=client", "-o", "yaml")
	wantParts(t, "the manifest", out, "checkpointRef:\n        name: wanderer-1", "id: cli-abcdefgh")

	// Of files alone, and of the conversation alone.
	files := effect()
	files.Conversation, files.Stops = nil, nil
	files.Files.Totals, files.Files.Items = historyv1.DiffTotals{IgnoredFiles: 3}, nil
	files.Files.UnmatchedPaths, files.Files.BlockedPaths = []string{"docs", "**/*.txt"}, []string{"lib"}
	files.Paths = []string{"src"}
	r.answers["GET tasks/wanderer/diff/rewind"] = files
	out, _, err := b.clew("", "rewind", "wanderer", "--to", "1", "--code", "--dry-run", "--", "src")
	wantError(t, err, "the rewind would fail, and is not requested: something that has to stay is in the way at lib")
	wantParts(t, "the preview", out, "changes             no file; 3 files stay, which the commit ignores or other repositories have\n",
		"selects no file     docs, **/*.txt: such a rewind fails, unless it is an empty folder\n",
		"in the way          lib: something there has to stay, so the rewind fails: move it elsewhere, or name it in the paths, too\n")
	wantParts(t, "the query", r.query(), "path=src", "scope=Code")
	withoutBranches(t, out)
	_, _, err = b.clew("", "rewind", "wanderer", "--to", "1", "--code", "--yes", "--", "src")
	wantError(t, err, "is not requested")
	files.Files.BlockedPaths, files.Files.Totals.IgnoredFiles = nil, 1
	r.answers["GET tasks/wanderer/diff/rewind"] = files
	out, _, err = b.clew("", "rewind", "wanderer", "--to", "1", "--dry-run", "--", "docs")
	wantParts(t, "the preview", out, "no file; 1 file stays, which the commit ignores or other repositories have\n")
	wantError(t, err, "the rewind would fail, unless these paths are empty folders: docs, **/*.txt")
	_, errOut, _ = b.clew("", "rewind", "wanderer", "--to", "1", "--", "src", "--yes", "-y", "-x")
	wantParts(t, "the hint", errOut, "hint: --yes comes after --, and is taken for a path; write flags before --\n", "hint: -y comes after --")
	if strings.Contains(errOut, "hint: -x") {
		t.Errorf("a path is taken for a flag: %s", errOut)
	}
	if b.get(task); task.Spec.Rewind != nil {
		t.Errorf("a rewind that would fail is requested: %+v", task.Spec.Rewind)
	}
	files.Fails = &historyv1.ExpectedFailure{Reason: "DriftDetected", Message: "1 file changed"}
	r.answers["GET tasks/wanderer/diff/rewind"] = files
	_, _, err = b.clew("", "rewind", "wanderer", "--to", "1", "--yes")
	wantError(t, err, "the rewind would fail, and is not requested: 1 file changed (DriftDetected)")
	talk := effect()
	talk.Files, talk.Keeps = nil, historyv1.KeptState{Preserve: "Discard"}
	talk.Conversation = &historyv1.RewoundConversation{FromPosition: 5, ToPosition: 8, Dropped: 2, Restored: 5}
	r.answers["GET tasks/wanderer/diff/rewind"] = talk
	out, _ = b.must("rewind", "wanderer", "--to", "1", "--conversation", "--dry-run")
	wantParts(t, "the preview", out, "keeps 3 of 5 messages; 5 earlier messages come back\n", "the current state as a checkpoint only\n")
	withoutBranches(t, out)
}

// withoutBranches checks that a preview does not say that branches go: the rewind leaves the agent's
// repository alone.
func withoutBranches(t *testing.T, preview string) {
	t.Helper()
	if strings.Contains(preview, "  branches") {
		t.Errorf("the preview says that branches go:\n%s", preview)
	}
}

// What the cluster would refuse is an error before the question.
func TestRewindThatWouldBeRefusedIsAnError(t *testing.T) {
	b := newBench(t)
	task := b.task("wanderer", v1alpha1.ReasonRunning)
	b.checkpoint(task, 1)
	r := b.withHistory(map[string]any{"GET tasks/wanderer/diff/rewind": metav1.Status{Code: 400, Reason: metav1.StatusReasonBadRequest, Message: "it would be refused"}})
	_, errOut, err := b.clew("yes\n", "rewind", "wanderer", "--to", "1")
	wantError(t, err, "it would be refused")
	wantText(t, "standard error", "", errOut)
	// Whoever may not read the history may rewind all the same.
	r.answers["GET tasks/wanderer/diff/rewind"] = metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: "you may not"}
	_, errOut = b.must("rewind", "wanderer", "--to", "1", "--yes", "--wait=false")
	wantParts(t, "the preview", errOut, "changes             unknown here (you are not allowed to do this: you may not")
	if b.get(task); task.Spec.Rewind == nil {
		t.Error("no rewind was requested")
	}
}

// rewoundTask creates a task that was rewound.
func (b *bench) rewoundTask(name string, status v1alpha1.OperationStatus) *v1alpha1.Task {
	b.Helper()
	task := b.task(name, v1alpha1.ReasonSuspended)
	task.Status.Rewind = &status
	task.Status.HandledOperations = []string{"Rewind/" + status.ID}
	b.try(server.Client.Status().Update(b.ctx, task))
	return task
}

func TestUndo(t *testing.T) {
	b := newBench(t)
	task := b.rewoundTask("wanderer", v1alpha1.OperationStatus{ID: "back", State: v1alpha1.OperationCompleted, FromCheckpoint: 4, ToCheckpoint: 1})
	answer := effect()
	answer.UndoOf, answer.To, answer.Scope, answer.Paths = "back", historyv1.RewindPoint{Checkpoint: 4}, "Code", []string{"src"}
	r := b.withHistory(map[string]any{"GET tasks/wanderer/diff/rewind": answer})
	playManager(b, &v1alpha1.TaskList{}, func(t *v1alpha1.Task) bool {
		if t.Spec.Rewind == nil {
			return false
		}
		t.Status.Rewind = &v1alpha1.OperationStatus{ID: t.Spec.Rewind.ID, State: v1alpha1.OperationCompleted, UndoOf: "back",
			FromCheckpoint: 6, ToCheckpoint: 4, Preserved: "clew/before-cli-abcdefgh"}
		t.Status.HandledOperations = append(t.Status.HandledOperations, "Rewind/"+t.Spec.Rewind.ID)
		return true
	})
	out, errOut, err := b.clew("yes\n", "undo", "wanderer")
	b.try(err)
	wantText(t, "output", "task.clew.dev/wanderer rewind back undone: rewound to checkpoint 4; the previous state is kept as checkpoint 6 and branch clew/before-cli-abcdefgh\n", out)
	wantParts(t, "the preview", errOut, "Undo of rewind back of task wanderer\n", "checkpoint 4, from before that rewind\n", "only the files at src;", "and 5 more files\n", "Undo? [y/N]")
	wantText(t, "query", "id=cli-abcdefgh&limit=15&preserve=Branch&undoOf=back&whenRunning=Stop", r.query())
	b.get(task)
	want := v1alpha1.Rewind{ID: "cli-abcdefgh", To: v1alpha1.RewindTarget{UndoOf: "back"}, Scope: v1alpha1.RewindBoth,
		Preserve: v1alpha1.PreserveBranch, OnDrift: v1alpha1.OnDriftFail, WhenRunning: v1alpha1.WhenRunningStop, Children: v1alpha1.ChildrenKeep}
	if diff := cmp.Diff(want, *task.Spec.Rewind); diff != "" {
		t.Errorf("spec.rewind (-want +got):\n%s", diff)
	}
	// The undo of the undo.
	answer.UndoOf = "cli-abcdefgh"
	r.answers["GET tasks/wanderer/diff/rewind"] = answer
	b.must("undo", "wanderer", "--dry-run=client")
	wantParts(t, "the query", r.query(), "undoOf=cli-abcdefgh")
}

func TestUndoFindsTheLastRewindThatWasCarriedOut(t *testing.T) {
	b := newBench(t)
	b.rewoundTask("wanderer", v1alpha1.OperationStatus{ID: "wrong", State: v1alpha1.OperationRefused})
	answer := effect()
	answer.UndoOf = "back"
	r := b.withHistory(map[string]any{"GET tasks/wanderer/diff/rewind": answer})
	out, _ := b.must("undo", "wanderer", "--dry-run=server")
	wantParts(t, "output", out, "Undo of rewind back of task wanderer\n", "\ntask.clew.dev/wanderer undo of rewind back requested (server dry run)\n")
	wantParts(t, "the query", r.query(), "undoLast=true")
}

// A resume that begins with a rewind is the last rewind, as long as none has followed.
func TestUndoTakesBackTheRewindOfAResume(t *testing.T) {
	b := newBench(t)
	task := b.rewoundTask("wanderer", v1alpha1.OperationStatus{ID: "back", State: v1alpha1.OperationCompleted, FromCheckpoint: 4, ToCheckpoint: 1})
	task.Status.Resume = &v1alpha1.OperationStatus{ID: "on", State: v1alpha1.OperationCompleted, FromCheckpoint: 6, ToCheckpoint: 2}
	task.Status.HandledOperations = []string{"Rewind/back", "Resume/on"}
	b.try(server.Client.Status().Update(b.ctx, task))
	answer := effect()
	answer.UndoOf = "resume:on"
	r := b.withHistory(map[string]any{"GET tasks/wanderer/diff/rewind": answer})
	out, _ := b.must("undo", "wanderer", "--dry-run=server")
	wantParts(t, "the query", r.query(), "undoOf=resume%3Aon")
	wantParts(t, "output", out, "Undo of the rewind by resume on of task wanderer\n",
		"\ntask.clew.dev/wanderer undo of the rewind by resume on requested (server dry run)\n")

	// Of two resumes the status knows only one.
	task.Status.Resume = &v1alpha1.OperationStatus{ID: "later", State: v1alpha1.OperationCompleted, Attempt: 3}
	task.Status.HandledOperations = append(task.Status.HandledOperations, "Resume/later")
	b.try(server.Client.Status().Update(b.ctx, task))
	b.must("undo", "wanderer", "--dry-run=client")
	wantParts(t, "the query", r.query(), "undoLast=true")
}

func TestUndoChangesNothing(t *testing.T) {
	b := newBench(t)
	fresh := b.task("fresh", v1alpha1.ReasonRunning)
	refused := b.rewoundTask("refused", v1alpha1.OperationStatus{ID: "wrong", State: v1alpha1.OperationRefused})
	busy := b.rewoundTask("busy", v1alpha1.OperationStatus{ID: "back", State: v1alpha1.OperationInProgress})
	done := b.rewoundTask("done", v1alpha1.OperationStatus{ID: "back", State: v1alpha1.OperationCompleted, FromCheckpoint: 2})
	nothing := metav1.Status{Code: 400, Reason: metav1.StatusReasonBadRequest, Message: "there is nothing to undo: no rewind of task refused was carried out"}
	for _, test := range []struct {
		name   string
		task   *v1alpha1.Task
		answer any
		typed  string
		args   []string
		err    string
	}{
		{"where nothing was rewound", fresh, effect(), "", []string{"--yes"}, "there is nothing to undo: task fresh was never rewound"},
		{"where the only rewind was refused", refused, nothing, "", []string{"--yes"}, "there is nothing to undo: no rewind of task refused was carried out"},
		{"where nobody knows the last rewind", refused, nil, "", []string{"--yes"}, "the history has to say which rewind was the last one"},
		{"during a rewind", busy, effect(), "", []string{"--yes"}, "a rewind of task busy is already in progress (back)"},
		{"without a yes", done, effect(), "no\n", nil, "nothing was changed"},
		{"without a terminal", done, effect(), "", nil, "add --yes"},
		{"with a branch that is not made", done, effect(), "", []string{"--yes", "--branch", "a", "--preserve", "stash"}, "--preserve Stash"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b.withHistory(map[string]any{"GET tasks/" + test.task.Name + "/diff/rewind": test.answer})
			_, _, err := b.clew(test.typed, append([]string{"undo", test.task.Name}, test.args...)...)
			wantError(t, err, test.err)
			if b.get(test.task); test.task.Spec.Rewind != nil {
				t.Errorf("requested %+v", test.task.Spec.Rewind)
			}
		})
	}
}
