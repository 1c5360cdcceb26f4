package cli

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

const sourcePosition = "GET tasks/source/conversation/position"

// TestForkSaysFromWhereItStarts: before it creates anything, and in a dry run.
func TestForkSaysFromWhereItStarts(t *testing.T) {
	b := newBench(t)
	task := b.task("source", v1alpha1.ReasonRunning)
	first := b.checkpoint(task, 1)
	b.checkpoint(task, 3)
	for _, name := range []string{"latest", "3", "30m"} { // a name counts last
		b.renamed(first, name)
	}
	r := b.withHistory(map[string]any{
		sourcePosition: historyv1.ConversationPoint{Position: 12, Asked: 13, Snapped: true, Messages: 40, Checkpoint: 1, CheckpointPosition: 10},
	})
	for _, test := range []struct {
		args  []string
		query string
		want  []string
	}{
		{[]string{"--at", "message:13"}, "message=13", []string{"from           message 13", "to message 12, the end of its turn", "checkpoint 1 (source-1), taken 9m ago, ToolCalls", "up to message 10, as at the checkpoint"}},
		{[]string{"--at", "2026-11-21 11:30:00", "--no-conversation"}, "time=2026-11-21T11%3A30%3A00Z", []string{"2026-11-21 11:30:00", "checkpoint 1 (source-1), taken 9m ago", "conversation   empty"}},
		{[]string{"--at", "3"}, "", []string{"from           checkpoint 3 (source-3), taken 7m ago", "up to message 30"}},
		{[]string{"--at", "30m"}, "time=2026-11-21T11%3A30%3A00Z", []string{"2026-11-21 11:30:00"}},
		{nil, "", []string{"from           checkpoint 3 (source-3), taken 7m ago"}},
		{[]string{"--at", "latest"}, "", []string{"from           checkpoint 3 (source-3), taken 7m ago"}},
	} {
		r.asked = nil
		out, _ := b.must(append([]string{"fork", "source", "--name", "new", "--dry-run=server"}, test.args...)...)
		wantParts(t, "output", out, append(test.want, "Fork of task source", "\nfork.clew.dev/new created (server dry run)\n")...)
		if asked := strings.Join(r.asked, "\n"); test.query != "" && !strings.Contains(asked, "position?"+test.query) {
			t.Errorf("%v: the requests lack %q:\n%s", test.args, test.query, asked)
		}
	}
	// A checkpoint without an object, as the history has it.
	r.answers[sourcePosition] = historyv1.ConversationPoint{Position: 12, Asked: 12, Messages: 40, Checkpoint: 2, CheckpointPosition: 11}
	r.answers["GET tasks/source/checkpoints/2"] = historyv1.Checkpoint{TaskUID: string(task.UID), Number: 2, Trigger: "Turn", Time: metav1.NewMicroTime(noon.Add(-time.Hour)), Position: 11}
	out, _ := b.must("fork", "source", "--name", "new", "--dry-run=client", "--at", "message:12")
	wantParts(t, "the preview", out, "checkpoint 2 (its object was deleted), taken 60m ago, Turn", "up to message 11")
	// At that time, the task was on a branch that its conversation has left.
	r.answers[sourcePosition] = historyv1.ConversationPoint{Position: 12, Asked: 12, Messages: 40, Checkpoint: 1, CheckpointPosition: 10, ElsewhereCheckpoint: 2}
	out, _ = b.must("fork", "source", "--name", "new", "--dry-run=client", "--at", "2026-11-21 11:30:00")
	wantParts(t, "the preview", out, "newer          checkpoint 2, which was taken by then, too, is on another branch of the conversation")
	// Without the history, the cluster resolves it.
	r.answers[sourcePosition] = metav1.Status{Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Message: "no server"}
	b.must("fork", "source", "--name", "new", "--at", "message:500", "--wait=false")
	f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "new"}}
	if b.get(f); f.Spec.At == nil || f.Spec.At.Message == nil || *f.Spec.At.Message != 500 {
		t.Errorf("the Fork starts at %+v", f.Spec.At)
	}
}

func TestForkOfAMissingMomentIsRefused(t *testing.T) {
	b := newBench(t)
	task := b.task("source", v1alpha1.ReasonRunning)
	b.checkpoint(task, 1)
	task.Status.MessageCount = 4
	b.try(server.Client.Status().Update(b.ctx, task))
	r := b.withHistory(map[string]any{})
	for _, test := range []struct {
		answer any
		at     string
		err    string
	}{
		{nil, "message:500", "the conversation of task source has no message 500; `kubectl clew task history source -n "},
		{historyv1.ConversationPoint{Messages: 4}, "30d", "the conversation of task source had no message yet at 2026-10-22 12:00:00"},
		{historyv1.ConversationPoint{Messages: 4, Asked: 2, Position: 2}, "message:2", "task source has no checkpoint at or before message 2: name a later moment"},
		{nil, "base", `task source has no checkpoint "base"; list its checkpoints with ` + "`kubectl clew checkpoint list source -n " + b.namespace + "`; --at also takes latest, a message such as message:12"},
	} {
		r.answers[sourcePosition] = test.answer
		for _, more := range [][]string{nil, {"--dry-run=server"}} {
			_, _, err := b.clew("", append([]string{"fork", "source", "--name", "new", "--at", test.at}, more...)...)
			wantError(t, err, test.err)
		}
	}
	list := &v1alpha1.ForkList{}
	if b.try(server.Client.List(b.ctx, list, client.InNamespace(b.namespace))); len(list.Items) > 0 {
		t.Errorf("%d Forks were created", len(list.Items))
	}
}

// TestAForkThatMayNeverStartIsDeleted: when the history could not say so before it was created.
func TestAForkThatMayNeverStartIsDeleted(t *testing.T) {
	b := newBench(t)
	b.checkpoint(b.task("source", v1alpha1.ReasonRunning), 1)
	playManager(b, &v1alpha1.ForkList{}, func(f *v1alpha1.Fork) bool {
		f.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ForkComplete, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPositionNotFound,
			Message: "the conversation has no message 500", LastTransitionTime: metav1.NewTime(noon)}}
		return true
	})
	_, _, err := b.clew("", "fork", "source", "--name", "long", "--at", "message:500", "--timeout", "2s")
	wantError(t, err, "(the conversation has no message 500); the fork long waits for something that may never come: `kubectl delete forks.clew.dev long -n "+b.namespace+"` removes it")
}

func TestAnInterruptedWaitSaysHowToRemoveWhatMayNeverBeDone(t *testing.T) {
	s := &session{namespace: "team"}
	f := &v1alpha1.Fork{Status: v1alpha1.ForkStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ForkComplete, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPositionNotFound}}}}
	wantError(t, s.givenUp(waitFlags{}, "fork", "long", judgeFork(f), true), "interrupted; the fork long waits for something that may never come: `kubectl delete forks.clew.dev long -n team` removes it")
	f.Status.Conditions[0].Reason = v1alpha1.ReasonHistoryUnavailable
	wantError(t, s.givenUp(waitFlags{}, "fork", "long", judgeFork(f), true), "interrupted; the operation continues in the cluster")
}
