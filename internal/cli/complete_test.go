package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

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
		{[]string{"rewind", "worker", "--to-commit", ""}, "\tcheckpoint 1, "},
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
