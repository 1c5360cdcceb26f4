package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

func TestCompletion(t *testing.T) {
	b := newBench(t)
	b.checkpoint(b.task("worker", v1alpha1.ReasonRunning), 1)
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"resume", ""}, "worker\tRunning"},
		{[]string{"rewind", "worker", "--to", ""}, "1\tToolCalls"},
		{[]string{"rewind", "worker", "--to", "wor"}, "worker-1\tToolCalls"},
		{[]string{"rewind", "worker", "--to-commit", ""}, "\tcheckpoint 1: "},
		{[]string{"rewind", "worker", "--scope", ""}, "Conversation"},
		{[]string{"checkpoint", "show", "worker", ""}, "worker-1"},
		{[]string{"timeline", "--type", ""}, "rewind"},
		{[]string{"timeline", "-n", "cli-"}, b.namespace},
		{[]string{"timeline", "--context", ""}, "test"},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			var out bytes.Buffer
			cmd := New(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: io.Discard}, Options{})
			cmd.SetArgs(append([]string{"__complete", "--kubeconfig", b.kubeconfig}, test.args...))
			b.try(cmd.ExecuteContext(b.ctx))
			wantParts(t, "completion", out.String(), test.want)
		})
	}
}

func TestCompletionOfMoments(t *testing.T) {
	b := newBench(t)
	b.task("worker-fork", v1alpha1.ReasonCompleted)
	task := b.task("worker", v1alpha1.ReasonRunning)
	c := b.checkpoint(task, 12)
	c.Status.Time = &metav1.Time{Time: noon.Add(-5 * time.Minute)}
	b.try(server.Client.Status().Update(b.ctx, c))
	pruned := historyv1.Checkpoint{TaskUID: string(task.UID), Number: 3, Trigger: "Time", Time: metav1.NewMicroTime(noon.Add(-2 * time.Hour))}
	lost := historyv1.Checkpoint{TaskUID: string(task.UID), Number: 2, Lost: true}
	b.withHistory(map[string]any{
		"GET tasks/worker/checkpoints":      historyv1.CheckpointList{Items: []historyv1.Checkpoint{{TaskUID: string(task.UID), Number: 12}, pruned, lost}},
		"GET tasks/worker-fork/checkpoints": historyv1.CheckpointList{Items: []historyv1.Checkpoint{{TaskUID: "fork", Number: 4, Trigger: "Suspend", Time: metav1.NewMicroTime(noon)}}},
	})
	const (
		twelve   = "12\tToolCalls, 5m ago\n"
		byName   = "worker-12\tToolCalls, 5m ago\n"
		three    = "3\tTime, 120m ago, without an object\n"
		words    = "base\twhat the task started from\n"
		previous = "previous\twhat the other moment was made on\n"
		others   = "latest\tthe newest checkpoint\nlive\tthe files as they are now\ndrift\twhat was changed while the task was not running\n"
		inOrder  = ":36\n" // no files; keep the order
	)
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"rewind", "worker", "--to", ""}, twelve + three + byName + "latest\tthe latest checkpoint\nbase\tthe files that the task started from\n" + inOrder},
		{[]string{"resume", "worker", "--from-checkpoint", "1"}, twelve + inOrder},
		{[]string{"fork", "worker", "--at", "w"}, byName + inOrder},
		{[]string{"fork", "worker", "--at", "l"}, "latest\tthe latest checkpoint\n" + inOrder},
		{[]string{"diff", "worker", ""}, words + previous + others + twelve + three + byName + inOrder},
		{[]string{"diff", "worker", "3", ""}, words + others + twelve + three + byName + inOrder},
		{[]string{"diff", "worker", "3", "wo"}, byName + "worker-fork:latest\tCompleted\n" + inOrder},
		{[]string{"diff", "worker", "3", "worker-fork:l"}, "worker-fork:latest\tthe newest checkpoint\nworker-fork:live\tthe files as they are now\n" + inOrder},
		{[]string{"diff", "worker", "3", "worker-fork:4"}, "worker-fork:4\tSuspend, 0s ago, without an object\n" + inOrder},
		{[]string{"diff", "worker", "3", "12", ""}, ":0\n"},
		{[]string{"diff", "worker", "--", ""}, ":0\n"},
		{[]string{"diff", "worker", "3", "--", "src", "w"}, ":0\n"},
		{[]string{"checkpoint", "restore", "worker", ""}, three + inOrder},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			out, _, err := b.clew("", append([]string{"__complete"}, test.args...)...)
			b.try(err)
			wantText(t, "completion", test.want, out)
		})
	}
}

func TestCompletionOfHistories(t *testing.T) {
	b := newBench(t)
	b.withHistory(map[string]any{"GET taskhistories": historyv1.TaskHistoryList{Items: []historyv1.TaskHistory{taskHistoryOf("gone", "u1"), taskHistoryOf("gone", "u0")}}})
	for _, args := range [][]string{
		{"task", "history", ""}, {"task", "export", "go"}, {"task", "delete-history", ""}, {"search", "x", "--task", ""}, {"task", "list", "--name", ""},
	} {
		out, _, err := b.clew("", append([]string{"__complete"}, args...)...)
		b.try(err)
		if strings.Count(out, "gone\tCompleted, 40 messages: Fix the login.") != 1 {
			t.Errorf("%v: completion %q does not offer task gone exactly once", args, out)
		}
	}
	for want, args := range map[string][]string{
		"Failed":       {"task", "list", "--state", ""},
		"tokens":       {"task", "list", "--sort", ""},
		"assistant":    {"search", "--role", ""},
		"Conversation": {"rewind", "x", "--scope", ""},
		"Exclude":      {"resume", "x", "--context-summary", ""},
	} {
		out, _, err := b.clew("", append([]string{"__complete"}, args...)...)
		b.try(err)
		wantParts(t, fmt.Sprintf("completion of %v", args), out, want)
	}
}
