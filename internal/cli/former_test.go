package cli

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

// The checkpoints of a task that was deleted are in its history, and every other command says so.
func TestATaskThatWasDeleted(t *testing.T) {
	b := newBench(t)
	gone := &v1alpha1.Task{}
	gone.Namespace, gone.Name, gone.UID = b.namespace, "gone", "u1"
	one, two := recordedCheckpoint(gone, 1), recordedCheckpoint(gone, 2)
	b.withHistory(map[string]any{
		"GET tasks/gone/checkpoints":   historyv1.CheckpointList{Items: []historyv1.Checkpoint{two, one}},
		"GET tasks/gone/checkpoints/1": one,
		"GET tasks/gone/checkpoints/2": two,
		"GET tasks/empty/checkpoints":  historyv1.CheckpointList{},
	})
	for _, args := range [][]string{{"checkpoint", "list", "gone", "--no-headers"}, {"checkpoint", "list", "gone", "--all", "--no-headers"}} {
		out, errOut := b.must(args...)
		wantParts(t, "the list", squeezed(out), "1 - ToolCalls yes 2 +3 -4 5 60m after some work\n2 - ToolCalls yes")
		wantText(t, "standard error", "", errOut)
	}
	_, _, err := b.clew("", "checkpoint", "list", "gone", "-o", "name")
	wantError(t, err, "task gone was deleted, and its checkpoints have no object and no name")
	out, _ := b.must("checkpoint", "show", "gone", "1")
	wantParts(t, "the checkpoint", out, "none: the task was deleted, and its history is kept", "after some work")
	out, _ = b.must("checkpoint", "show", "gone", "latest")
	wantParts(t, "the latest checkpoint", squeezed(out), "Number: 2")
	_, _, err = b.clew("", "checkpoint", "show", "gone", "7")
	wantError(t, err, "the history of task gone, which was deleted, has no checkpoint 7")

	const kept = "task gone was deleted; its history is kept: fork it with `kubectl clew fork gone --name NAME -n "
	for _, args := range [][]string{
		{"undo", "gone"}, {"rewind", "gone", "--to", "1"}, {"resume", "gone"}, {"tree", "gone"}, {"suspend", "gone"}, {"drift", "gone"},
		{"checkpoint", "create", "gone"}, {"checkpoint", "restore", "gone", "1"}, {"publish", "gone"}, {"snapshot", "list", "gone"},
	} {
		_, _, err := b.clew("", args...)
		wantError(t, err, kept+b.namespace+"`, or apply it again with adopt: Latest")
	}
	_, _, err = b.clew("", "undo", "empty")
	wantError(t, err, "task empty was deleted; its history is kept: apply it again with adopt: Latest")
	_, _, err = b.clew("", "undo", "nobody")
	wantError(t, err, `there is no task "nobody" in namespace `)
	_, _, err = b.clew("", "tree", "nobody")
	wantError(t, err, `there is no task and no fork "nobody"`)
}

// A namespace's admin may import any history, and whoever may exec into a pod has the daemon's token.
func TestTheHistoryOfADeletedTaskCannotControlTheTerminal(t *testing.T) {
	b := newBench(t)
	gone := &v1alpha1.Task{}
	gone.Namespace, gone.Name, gone.UID = b.namespace, "gone", "u1"
	const osc = "\x1b]52;c;cm0gLXJmIH4=\x07"
	one := recordedCheckpoint(gone, 1)
	one.Trigger, one.Consistency, one.GitHead = osc+"t", osc+"y", osc+"h"
	one.Commit, one.Tree, one.Parent, one.Base, one.StateCommit = osc+"c", osc+"r", osc+"p", osc+"b", osc+"s"
	one.ChangedFiles[0].Action, one.Skipped[0].Reason = osc+"a", osc+"r"
	b.withHistory(map[string]any{
		"GET tasks/gone/checkpoints":   historyv1.CheckpointList{Items: []historyv1.Checkpoint{one}},
		"GET tasks/gone/checkpoints/1": one,
	})
	for _, args := range [][]string{
		{"checkpoint", "list", "gone"}, {"checkpoint", "show", "gone", "1"},
		{"fork", "gone", "--name", "again", "--dry-run=client"}, {"fork", "gone", "--name", "again", "--at", "1", "--dry-run=client"},
	} {
		out, errOut := b.must(args...)
		if strings.ContainsAny(out+errOut, "\x1b\x07") {
			t.Errorf("kubectl clew %s prints an escape sequence: %q", strings.Join(args, " "), out+errOut)
		}
	}
}

// A Checkpoint that somebody applied, or that restore, publish or checkpoint branch made, has no owner
// and outlives its Task: it stands for itself among the others, and can be named.
func TestAnObjectThatOutlivesItsTask(t *testing.T) {
	b := newBench(t)
	gone := &v1alpha1.Task{}
	gone.Namespace, gone.Name, gone.UID = b.namespace, "gone", "u1"
	one, two := recordedCheckpoint(gone, 1), recordedCheckpoint(gone, 2)
	b.checkpoint(gone, 1)
	b.withHistory(map[string]any{"GET tasks/gone/checkpoints": historyv1.CheckpointList{Items: []historyv1.Checkpoint{two, one}}})
	out, errOut := b.must("checkpoint", "list", "gone", "--no-headers")
	wantParts(t, "the list", squeezed(out), "1 gone-1 ToolCalls yes", "\n2 - ToolCalls yes")
	wantText(t, "standard error", "", errOut)
	out, errOut = b.must("checkpoint", "list", "gone", "-o", "name")
	wantText(t, "the names", "checkpoint.clew.dev/gone-1\n", out)
	wantText(t, "the note", "1 checkpoint without an object not listed: only an object has a name; another output lists all.\n", errOut)

	b.must("fork", "gone", "--name", "again", "--at", "gone-1", "--wait=false")
	f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "again"}}
	b.get(f)
	if at := f.Spec.At; at == nil || at.CheckpointNumber == nil || *at.CheckpointNumber != 1 {
		t.Errorf("the Fork is made at %+v, want checkpoint 1", at)
	}
}
