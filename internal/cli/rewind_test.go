package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func TestRewind(t *testing.T) {
	b := newBench(t)
	task := b.task("wanderer", v1alpha1.ReasonRunning)
	for n := int64(1); n <= 3; n++ {
		b.checkpoint(task, n)
	}
	playManager(b, &v1alpha1.TaskList{}, func(t *v1alpha1.Task) bool {
		if t.Spec.Rewind == nil {
			return false
		}
		t.Status.Rewind = &v1alpha1.OperationStatus{
			ID: t.Spec.Rewind.ID, State: v1alpha1.OperationCompleted,
			FromCheckpoint: 4, ToCheckpoint: 1, Preserved: "clew/before-cli-abcdefgh",
		}
		return true
	})
	out, errOut, err := b.clew("yes\n", "rewind", "wanderer", "--to", "1", "--scope", "code")
	b.try(err)
	wantText(t, "output", "task.clew.dev/wanderer rewound to checkpoint 1; the previous state is kept as checkpoint 4 and branch clew/before-cli-abcdefgh\n", out)
	wantParts(t, "the preview", errOut, "Rewind of task wanderer", "checkpoint 1 (wanderer-1)", "2 checkpoints, all of which are kept",
		"the files; the agent's own state and the conversation stay as they are", "branch clew/before-cli-abcdefgh",
		"continues from there (the task is Running now)", "Rewind? [y/N]")
	b.get(task)
	want := v1alpha1.Rewind{
		ID: "cli-abcdefgh", To: v1alpha1.RewindTarget{CheckpointRef: &v1alpha1.NameReference{Name: "wanderer-1"}},
		Scope: v1alpha1.RewindCode, Preserve: v1alpha1.PreserveBranch, OnDrift: v1alpha1.OnDriftFail,
		WhenRunning: v1alpha1.WhenRunningStop, Children: v1alpha1.ChildrenKeep,
	}
	if diff := cmp.Diff(want, *task.Spec.Rewind); diff != "" {
		t.Errorf("spec.rewind (-want +got):\n%s", diff)
	}
}

func TestRewindOfPaths(t *testing.T) {
	b := newBench(t)
	task := b.task("wanderer", v1alpha1.ReasonRunning)
	b.checkpoint(task, 1)
	playManager(b, &v1alpha1.TaskList{}, func(t *v1alpha1.Task) bool {
		if t.Spec.Rewind == nil {
			return false
		}
		t.Status.Rewind = &v1alpha1.OperationStatus{ID: t.Spec.Rewind.ID, State: v1alpha1.OperationCompleted, FromCheckpoint: 4, ToCheckpoint: 1}
		return true
	})
	out, errOut, err := b.clew("yes\n", "rewind", "wanderer", "--to", "1", "--", "src/a.go", "**/*.snap")
	b.try(err)
	wantText(t, "output", "task.clew.dev/wanderer 2 paths rewound to checkpoint 1; the previous state is kept as checkpoint 4\n", out)
	wantParts(t, "the preview", errOut, "only the files at src/a.go **/*.snap; the agent's own state and the conversation stay as they are")
	b.get(task)
	wantText(t, "paths", "src/a.go **/*.snap", strings.Join(task.Spec.Rewind.Paths, " "))
	wantText(t, "scope", "Code", string(task.Spec.Rewind.Scope))
	// The next rewind is one of everything again.
	task.Spec.Rewind.ID = "earlier"
	b.try(server.Client.Update(b.ctx, task))
	b.must("rewind", "wanderer", "--to", "1", "--yes", "--wait=false")
	b.get(task)
	if task.Spec.Rewind.Paths != nil || task.Spec.Rewind.Scope != v1alpha1.RewindBoth {
		t.Errorf("the next rewind is %+v", *task.Spec.Rewind)
	}
}

func TestRewindToACommit(t *testing.T) {
	b := newBench(t)
	task := b.task("wanderer", v1alpha1.ReasonRunning)
	id := strings.Repeat("0123456789", 4)
	playManager(b, &v1alpha1.TaskList{}, func(t *v1alpha1.Task) bool {
		if t.Spec.Rewind == nil {
			return false
		}
		t.Status.Rewind = &v1alpha1.OperationStatus{ID: t.Spec.Rewind.ID, State: v1alpha1.OperationCompleted, FromCheckpoint: 4, ToCommit: id,
			Message: "the files were rewound to commit 012345678901"}
		t.Status.HandledOperations = []string{"Rewind/" + t.Spec.Rewind.ID}
		return true
	})
	out, errOut, err := b.clew("yes\n", "rewind", "wanderer", "--to-commit", id)
	b.try(err)
	wantText(t, "output", "task.clew.dev/wanderer rewound to commit 012345678901; the previous state is kept as checkpoint 4\n", out)
	wantParts(t, "the preview", errOut, "to          commit 012345678901\n", "the files; the agent's own state and the conversation stay as they are")
	b.get(task)
	want := v1alpha1.Rewind{ID: "cli-abcdefgh", To: v1alpha1.RewindTarget{Commit: id},
		Scope: v1alpha1.RewindCode, Preserve: v1alpha1.PreserveBranch, OnDrift: v1alpha1.OnDriftFail, WhenRunning: v1alpha1.WhenRunningStop, Children: v1alpha1.ChildrenKeep}
	if diff := cmp.Diff(want, *task.Spec.Rewind); diff != "" {
		t.Errorf("spec.rewind (-want +got):\n%s", diff)
	}
	// Paths of a commit; and after an undo, which the next rewind must not repeat.
	task.Spec.Rewind = &v1alpha1.Rewind{ID: "undo", To: v1alpha1.RewindTarget{UndoOf: "cli-abcdefgh"}}
	b.try(server.Client.Update(b.ctx, task))
	out, _ = b.must("rewind", "wanderer", "--to-commit", id, "--yes", "--wait=false", "--", "src")
	wantText(t, "output", "task.clew.dev/wanderer rewind to commit 012345678901 requested\n", out)
	b.get(task)
	wantText(t, "paths", "src", strings.Join(task.Spec.Rewind.Paths, " "))
	wantText(t, "what is undone", "", task.Spec.Rewind.To.UndoOf)
}

// TestRewindToBase: to the commit that the checkpoints name as what the task started from.
func TestRewindToBase(t *testing.T) {
	b := newBench(t)
	task, base := b.task("wanderer", v1alpha1.ReasonSuspended), strings.Repeat("0123456789", 4)
	recorded := historyv1.CheckpointList{Items: []historyv1.Checkpoint{{TaskUID: string(task.UID), Number: 2, Base: base}}}
	r := b.withHistory(map[string]any{"GET tasks/wanderer/checkpoints": historyv1.CheckpointList{}})
	_, _, err := b.clew("", "rewind", "wanderer", "--to", "base", "--yes")
	wantError(t, err, "task wanderer has no checkpoint yet, so it is not known what it started from")

	r.answers["GET tasks/wanderer/checkpoints"] = recorded
	out, errOut := b.must("rewind", "wanderer", "--to", "base", "--yes", "--wait=false", "--", "src")
	wantText(t, "output", "task.clew.dev/wanderer rewind to base (commit 012345678901) requested\n", out)
	wantParts(t, "the preview", errOut, "to          base (commit 012345678901)\n", "only the files at src")
	b.get(task)
	wantText(t, "the commit", base, task.Spec.Rewind.To.Commit)
	wantText(t, "the scope", "Code", string(task.Spec.Rewind.Scope))

	c := b.checkpoint(task, 3)
	_, _, err = b.clew("", "rewind", "wanderer", "--to", "base", "--yes")
	wantError(t, err, "task wanderer started with an empty repository")
	c.Status.Base = strings.Repeat("9", 40)
	b.try(server.Client.Status().Update(b.ctx, c))
	out, _ = b.must("rewind", "wanderer", "--to", "base", "--dry-run=client")
	wantParts(t, "the preview", out, "to          base (commit 999999999999)\n")
	if strings.Contains(out, "its own start") {
		t.Errorf("the task is taken for a fork:\n%s", out)
	}

	// The base of a fork is that of its source.
	fork := builders.Task("fork", builders.InNamespace(b.namespace))
	fork.Spec.StartFrom = &v1alpha1.StartFrom{TaskRef: v1alpha1.NameReference{Name: "wanderer"}}
	b.try(server.Client.Create(b.ctx, fork))
	setSucceeded(fork, v1alpha1.ReasonSuspended)
	fork.Status.Source = &v1alpha1.SourceStatus{TaskUID: string(task.UID), Checkpoint: 3, Commit: base}
	b.try(server.Client.Status().Update(b.ctx, fork))
	r.answers["GET tasks/fork/checkpoints"] = historyv1.CheckpointList{Items: []historyv1.Checkpoint{{TaskUID: string(fork.UID), Number: 1, Base: strings.Repeat("9", 40)}}}
	out, _ = b.must("rewind", "fork", "--to", "base", "--dry-run=client")
	wantParts(t, "the preview", out, "its own start   was checkpoint 3 of task wanderer: --to-commit "+base+" leads to those files\n")
}

func TestRewindToANumberWithoutAnObject(t *testing.T) {
	b := newBench(t)
	task := b.task("wanderer", v1alpha1.ReasonSuspended)
	b.checkpoint(task, 9)
	r := b.withHistory(map[string]any{"GET tasks/wanderer/checkpoints/2": historyv1.Checkpoint{
		TaskUID: string(task.UID), Number: 2, Trigger: "ToolCalls", Time: metav1.NewMicroTime(noon.Add(-time.Hour)), Commit: "c2", Position: 5,
	}})
	_, errOut := b.must("rewind", "wanderer", "--to", "2", "--yes", "--wait=false", "--when-running", "refuse")
	wantParts(t, "the preview", errOut, "checkpoint 2 (its object was deleted), taken 60m ago, ToolCalls", "keeps 5 of")
	wantParts(t, "the requests", strings.Join(r.asked, "\n"), "checkpoints/2?uid="+string(task.UID), "diff/rewind?checkpointNumber=2&")
	b.get(task)
	want := v1alpha1.Rewind{
		ID: "cli-abcdefgh", To: v1alpha1.RewindTarget{CheckpointNumber: ptr.To[int64](2)},
		Scope: v1alpha1.RewindBoth, Preserve: v1alpha1.PreserveBranch, OnDrift: v1alpha1.OnDriftFail, WhenRunning: v1alpha1.WhenRunningRefuse, Children: v1alpha1.ChildrenKeep,
	}
	if diff := cmp.Diff(want, *task.Spec.Rewind); diff != "" {
		t.Errorf("spec.rewind (-want +got):\n%s", diff)
	}
	r.answers["GET tasks/wanderer/checkpoints/2"] = historyv1.Checkpoint{Number: 2, Lost: true}
	_, _, err := b.clew("", "rewind", "wanderer", "--to", "2", "--yes")
	wantError(t, err, "checkpoint 2 is lost")
	_, _, err = b.clew("", "rewind", "wanderer", "--to", "3", "--yes")
	wantError(t, err, "task wanderer has no checkpoint number 3; its newest is 9")
}

func TestRewindChangesNothingWithoutConfirmation(t *testing.T) {
	b := newBench(t)
	task := b.task("careful", v1alpha1.ReasonRunning)
	b.checkpoint(task, 1)
	b.get(task)
	before := task.ResourceVersion
	for _, test := range []struct {
		name, answer string
		args         []string
		err          string
	}{
		{"no", "n\n", []string{"--to", "1"}, "nothing was changed"},
		{"a bare return", "\n", []string{"--to", "1"}, "nothing was changed"},
		{"no terminal", "", []string{"--to", "1"}, "add --yes"},
		{"dry run", "", []string{"--to", "1", "--dry-run=server"}, ""},
		{"no target", "", []string{"--yes"}, "kubectl clew checkpoint list careful"},
		{"two targets", "", []string{"--to", "1", "--back", "2", "--yes"}, "use only one of --to"},
		{"two scopes", "", []string{"--to", "1", "--code", "--scope", "both", "--yes"}, "use only one of --code"},
		{"no message", "", []string{"--to-message", "0", "--yes"}, "at least 1"},
		{"not back", "", []string{"--back", "-1", "--yes"}, "at least 1"},
		{"no time", "", []string{"--to-time", "earlier", "--yes"}, "it must be a duration"},
		{"unknown number", "", []string{"--to", "8", "--yes"}, "its newest is 1"},
		{"branch without preserving one", "", []string{"--to", "1", "--yes", "--branch", "a", "--preserve", "stash"}, "--preserve Stash"},
		{"a branch name that git would refuse", "", []string{"--to", "1", "--yes", "--branch", "-x"}, "it must not begin with a dash"},
		{"a commit and a checkpoint", "", []string{"--to", "1", "--to-commit", strings.Repeat("a", 40), "--yes"}, "use only one of --to"},
		{"a short commit", "", []string{"--to-commit", "abc123", "--yes"}, "it must be the full id of a commit"},
		{"no commit", "", []string{"--to-commit", "", "--yes"}, "it must be the full id of a commit"},
		{"a commit of the conversation", "", []string{"--to-commit", strings.Repeat("a", 40), "--both", "--yes"}, "a commit, such as base, holds only files: use --code with it"},
		{"base of the conversation", "", []string{"--to", "base", "--conversation", "--yes"}, "a commit, such as base, holds only files: use --code with it"},
		{"paths of the conversation", "", []string{"--to", "1", "--yes", "--conversation", "--", "src"}, "use --code with them"},
		{"a path that leaves the worktree", "", []string{"--to", "1", "--yes", "--", "../src"}, "leaves the worktree"},
		{"a path without --", "", []string{"--to", "1", "--yes", "src"}, "write -- before paths"},
		{"an unknown scope", "", []string{"--to", "1", "--yes", "--scope", "all"}, "must be one of Code, Conversation, Both"},
		{"an unknown dry run", "", []string{"--to", "1", "--dry-run=maybe"}, "must be none, client or server"},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, _, err := b.clew(test.answer, append([]string{"rewind", "careful"}, test.args...)...)
			wantError(t, err, test.err)
			if err == nil && !strings.HasSuffix(out, "\ntask.clew.dev/careful rewind to checkpoint 1 requested (server dry run)\n") {
				t.Errorf("a dry run printed %q", out)
			}
			b.get(task)
			if task.ResourceVersion != before {
				t.Error("the task was changed")
			}
		})
	}
}

func TestRewindReportsAFailure(t *testing.T) {
	b := newBench(t)
	task := b.task("unlucky", v1alpha1.ReasonRunning)
	b.checkpoint(task, 1)
	playManager(b, &v1alpha1.TaskList{}, func(t *v1alpha1.Task) bool {
		if t.Spec.Rewind == nil {
			return false
		}
		t.Status.Rewind = &v1alpha1.OperationStatus{
			ID: t.Spec.Rewind.ID, State: v1alpha1.OperationFailed, Reason: v1alpha1.ReasonCheckpointCorrupted, Message: "a blob is missing",
		}
		return true
	})
	_, _, err := b.clew("", "rewind", "unlucky", "--to", "1", "--yes")
	wantError(t, err, "failed: a blob is missing (CheckpointCorrupted)")
}

func TestRewindToAPositionInTheConversation(t *testing.T) {
	b := newBench(t)
	task := b.task("wanderer", v1alpha1.ReasonRunning)
	b.checkpoint(task, 1)
	r := b.withHistory(map[string]any{
		"GET tasks/wanderer/conversation/position": historyv1.ConversationPoint{Position: 12, Asked: 13, Snapped: true, Messages: 41, Checkpoint: 1, CheckpointPosition: 9},
		"GET tasks/wanderer/conversation":          historyv1.ConversationList{Items: []historyv1.ConversationEntry{entry(12, "assistant", "All tests pass.")}},
	})
	for _, test := range []struct {
		name, query string
		args        []string
		to          v1alpha1.RewindTarget
		preview     []string
	}{
		{"message", "message=13", []string{"--to-message", "13", "--conversation"}, v1alpha1.RewindTarget{Message: ptr.To[int64](13)}, []string{
			"message 13", "to message 12, the end of its turn", "12 assistant: All tests pass.", "checkpoint 1 (wanderer-1)", "the conversation and the agent's own state; the files stay as they are", "keeps 12 of 41 messages",
		}},
		{"time", "time=2026-11-21T11%3A59%3A59Z", []string{"--to-time", "2026-11-21 11:59:59"}, v1alpha1.RewindTarget{Time: ptr.To(metav1.NewTime(noon.Add(-time.Second)))}, []string{
			"2026-11-21 11:59:59", "keeps 9 of 41 messages, as at the checkpoint",
		}},
		{"back", "back=4", []string{"--back", "4", "--code"}, v1alpha1.RewindTarget{MessagesBack: ptr.To[int32](4)}, []string{
			"4 messages back", "the files; the agent's own state and the conversation stay as they are",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, errOut := b.must(append([]string{"rewind", "wanderer", "--yes", "--wait=false"}, test.args...)...)
			wantParts(t, "the preview", errOut, append(test.preview, "Rewind of task wanderer")...)
			if !strings.HasPrefix(out, "task.clew.dev/wanderer rewind to ") || !strings.HasSuffix(out, " requested\n") {
				t.Errorf("printed %q; want that the rewind is requested", out)
			}
			b.get(task)
			if diff := cmp.Diff(test.to, task.Spec.Rewind.To); diff != "" {
				t.Errorf("spec.rewind.to (-want +got):\n%s", diff)
			}
			asksFor := func(asked string) bool { return strings.Contains(asked, "position?"+test.query) }
			if !slices.ContainsFunc(r.asked, asksFor) {
				t.Errorf("requests %q lack the query %q", r.asked, test.query)
			}
			task.Spec.Rewind = nil
			b.try(server.Client.Update(b.ctx, task))
		})
	}
	// Without permission to read the history, the preview is less detailed.
	r.answers["GET tasks/wanderer/conversation/position"] = metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: "you may not"}
	out, _ := b.must("rewind", "wanderer", "--back", "1", "--dry-run=server")
	wantParts(t, "the preview", out, "unknown here")
}

// The error comes before the question, and nothing is written.
func TestRewindToAMissingPositionIsAnError(t *testing.T) {
	const position = "GET tasks/short/conversation/position"
	b := newBench(t)
	task := b.task("short", v1alpha1.ReasonRunning)
	task.Status.MessageCount = 4
	b.try(server.Client.Status().Update(b.ctx, task))
	r := b.withHistory(map[string]any{})
	for _, test := range []struct {
		answer any
		args   []string
		err    string
	}{
		{nil, []string{"--to-message", "99"}, "the conversation of task short has no message 99; `kubectl clew task history short -n "},
		{nil, []string{"--back", "99"}, "the conversation of task short is too short to go 99 messages back"},
		{historyv1.ConversationPoint{Messages: 4}, []string{"--back", "4"}, "the conversation of task short is too short to go 4 messages back"},
		{historyv1.ConversationPoint{Messages: 4}, []string{"--to-time", "2020-01-01T00:00:00Z"}, "the conversation of task short had no message yet at 2020-01-01"},
	} {
		r.answers[position] = test.answer
		for _, more := range [][]string{nil, {"--yes"}, {"--dry-run=server"}} {
			out, errOut, err := b.clew("yes\n", append(append([]string{"rewind", "short"}, test.args...), more...)...)
			wantError(t, err, test.err)
			if strings.Contains(out+errOut, "Rewind") {
				t.Errorf("%v: printed a preview or a question:\n%s", test.args, out+errOut)
			}
		}
	}
	if b.get(task); task.Spec.Rewind != nil {
		t.Errorf("spec.rewind is %+v; want none", task.Spec.Rewind)
	}
}

// A clock that is behind the cluster's is no reason to refuse a time that the cluster printed.
func TestRewindToATimeInTheFutureIsAnError(t *testing.T) {
	b := newBench(t)
	b.task("early", v1alpha1.ReasonRunning)
	b.withHistory(map[string]any{
		"GET tasks/early/conversation/position": historyv1.ConversationPoint{Position: 12, Asked: 12, Messages: 12, Checkpoint: 1, CheckpointPosition: 9},
	})
	b.must("rewind", "early", "--to-time", "2026-11-21 12:00:59", "--dry-run=client")
	_, _, err := b.clew("", "rewind", "early", "--to-time", "2026-11-21 12:02:00", "--dry-run=client")
	wantError(t, err, `--to-time is "2026-11-21 12:02:00", which is in the future: it is 2026-11-21 12:00:00 now`)
}

func TestRewindToTheLatestCheckpoint(t *testing.T) {
	b := newBench(t)
	task := b.task("wanderer", v1alpha1.ReasonSuspended)
	_, _, err := b.clew("", "rewind", "wanderer", "--to", "latest", "--yes")
	wantError(t, err, "task wanderer has no checkpoint yet")
	b.checkpoint(task, 1)
	b.checkpoint(task, 2)
	b.must("rewind", "wanderer", "--to", "latest", "--yes", "--wait=false")
	b.get(task)
	wantText(t, "the checkpoint", "wanderer-2", task.Spec.Rewind.To.CheckpointRef.Name)
	_, _, err = b.clew("", "rewind", "wanderer", "--to", "live", "--yes")
	wantError(t, err, `has no checkpoint "live"`)
	wantError(t, err, "--to also takes base and latest")
}

// Whoever may only create Checkpoints does not decide what the word means.
func TestAnObjectNamedLatestIsNotTheLatestCheckpoint(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonSuspended)
	b.renamed(b.checkpoint(task, 1), "latest")
	b.checkpoint(task, 5)
	b.get(task)
	task.Status.LatestCheckpoint = &v1alpha1.CheckpointSummary{Name: "worker-5", Number: 5}
	b.try(server.Client.Status().Update(b.ctx, task))
	out, errOut := b.must("rewind", "worker", "--to", "latest", "--dry-run=client")
	wantParts(t, "the preview", out+errOut, "checkpoint 5 (worker-5)")
}

// renamed creates another object of a checkpoint.
func (b *bench) renamed(c *v1alpha1.Checkpoint, name string) {
	b.Helper()
	status := c.Status
	another := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: name}, Spec: v1alpha1.CheckpointSpec{TaskRef: c.Spec.TaskRef}}
	b.try(server.Client.Create(b.ctx, another))
	another.Status = status
	b.try(server.Client.Status().Update(b.ctx, another))
}

// The manager carries the rewind out once the task's pod has sent the messages again.
func TestRewindToAPositionThatTheHistoryStoreHasLostIsRequested(t *testing.T) {
	const position = "GET tasks/restored/conversation/position"
	b := newBench(t)
	task := b.task("restored", v1alpha1.ReasonRunning)
	r := b.withHistory(map[string]any{})
	for name, test := range map[string]struct {
		answer any
		behind bool // the manager has noticed
		args   []string
	}{
		"a message of a task that the store lacks":     {nil, false, []string{"--to-message", "40"}},
		"more messages back than the store has":        {nil, false, []string{"--back", "39"}},
		"a time before the store's first message":      {historyv1.ConversationPoint{Messages: 0}, false, []string{"--to-time", "1h"}},
		"a message after those that the status counts": {nil, true, []string{"--to-message", "99"}},
		"a time, with no message missing by count":     {historyv1.ConversationPoint{Messages: 40}, true, []string{"--to-time", "1h"}},
	} {
		t.Run(name, func(t *testing.T) {
			b.get(task)
			task.Status.Conditions = nil
			setSucceeded(task, v1alpha1.ReasonRunning)
			if test.behind {
				apimeta.SetStatusCondition(&task.Status.Conditions, metav1.Condition{
					Type: v1alpha1.TaskHistoryComplete, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonHistoryBehind})
			}
			b.try(server.Client.Status().Update(b.ctx, task))
			r.answers[position] = test.answer
			out, errOut := b.must(append([]string{"rewind", "restored", "--yes", "--wait=false"}, test.args...)...)
			wantParts(t, "the preview", errOut, "unknown here (the history store is missing part of this conversation); the cluster will resolve it")
			if !strings.HasSuffix(out, " requested\n") {
				t.Errorf("printed %q; want that the rewind is requested", out)
			}
			if b.get(task); task.Spec.Rewind == nil {
				t.Fatal("the task has no rewind")
			}
			task.Spec.Rewind = nil
			b.try(server.Client.Update(b.ctx, task))
		})
	}
}

func TestRewindOutcome(t *testing.T) {
	operation := &v1alpha1.OperationStatus{ToPosition: 12, ToCheckpoint: 3, FromCheckpoint: 7, Preserved: "clew/before-x", Message: "moved back to the end of the turn"}
	want := "rewound to message 12 and checkpoint 3; the previous state is kept as checkpoint 7 and branch clew/before-x"
	wantText(t, "outcome", want, rewindOutcome(operation, v1alpha1.PreserveBranch, &rewindTarget{}, nil))
}
