package toolclient_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/toolclient"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// supervisor is a task with a supervisor's tools, whose calls the server answers.
func supervisor(t *testing.T, answer func(*daemonv1.CallToolRequest) *daemonv1.CallToolResponse) *daemontest.World {
	t.Helper()
	w := daemontest.NewWorld(t, nil)
	w.Tools, w.CallWait = slices.Concat(v1alpha1.DefaultTools(), v1alpha1.SupervisorTools()), 500*time.Millisecond
	w.Server.AnswerCalls(answer)
	w.Prepare(1, nil)
	t.Cleanup(w.Start(1).End)
	serveShim(w)
	return w
}

// echo answers a call with what it wishes.
func echo(r *daemonv1.CallToolRequest) *daemonv1.CallToolResponse {
	return &daemonv1.CallToolResponse{Text: r.GetTool() + " " + string(r.GetArguments())}
}

func TestTheProgramCallsASupervisorsTools(t *testing.T) {
	w := supervisor(t, echo)
	file := filepath.Join(t.TempDir(), "prompt.md")
	if err := os.WriteFile(file, []byte("Write a parser.\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		want string
		args []string
	}{
		{`task_create {"name":"parser","prompt":"Write a parser."}`, []string{"task", "create", "parser", "-p", "@" + file}},
		{`task_create {"depends_on":["a","b"],"name":"c","prompt":"p","start_from":"self"}`, []string{"task", "create", "c", "-p", "p", "--depends-on", "a,b", "--start-from", "self"}},
		{`task_list {"phase":"Plan"}`, []string{"task", "list", "--phase", "Plan"}},
		{`task_wait {"any":true,"tasks":["a","b"]}`, []string{"task", "wait", "a", "b", "--any"}},
		{`task_wait {}`, []string{"task", "wait"}},
		{`task_history {"limit":3,"query":"a port","task":"a"}`, []string{"task", "history", "a", "a", "port", "--limit", "3"}},
		{`task_diff {"from":0,"path":"src","task":"a","to":7}`, []string{"task", "diff", "a", "0", "7", "--path", "src"}},
		{`task_resume {"prompt":"Go on.","task":"a"}`, []string{"task", "resume", "a", "-p", "Go on.", "--call-id", "x"}},
		{`task_rewind {"checkpoint":3,"task":"a"}`, []string{"task", "rewind", "a", "3"}},
		{`task_fork {"name":"ways","task":"a","variants":[{"name":"b","prompt":"x=y"},{"name":"c"}]}`, []string{"task", "fork", "a", "ways", "--variant", "b=x=y", "--variant", "c"}},
		{`task_stop {"task":"a"}`, []string{"task", "stop", "a"}},
		{`phase_set {"phase":"Execute"}`, []string{"phase", "set", "Execute"}},
		{`publish {}`, []string{"publish"}},
		{`publish {"task":"a"}`, []string{"publish", "a"}},
	} {
		expectOutput(t, w, tt.want, tt.args...)
	}
	expectError(t, w, `"last" is not the number of a checkpoint: clew task list`, "task", "rewind", "a", "last")
	expectError(t, w, "read the prompt", "task", "create", "a", "-p", "@"+file+".lost")
	expectError(t, w, "--variant", "task", "fork", "a", "ways")
	expectOutput(t, w, "clew task create parser -p @parser.md", "task", "create", "--help")
}

func TestAPromptIsReadFromStandardInput(t *testing.T) {
	w := supervisor(t, echo)
	cmd := toolclient.NewCommand(filepath.Join(w.RunDir, socket.Name), "test")
	var out bytes.Buffer
	cmd.SetIn(strings.NewReader("From a pipe.\n"))
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"task", "create", "a", "-p", "-"})
	if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), `"prompt":"From a pipe."`) {
		t.Errorf("the program printed, with error %v,\n%s", err, out.String())
	}
}

// An answer that the program has written out has reached whoever called it; one that it was killed
// before writing out has not.
func TestAPrintedAnswerIsDelivered(t *testing.T) {
	w := supervisor(t, echo)
	if _, failed := w.CallTool("task_stop", map[string]any{"task": "a"}); failed { // by a program that was killed
		t.Fatal("the call was refused")
	}
	expectOutput(t, w, "[call id-1]", "task", "stop", "a")
	expectOutput(t, w, "[call id-2]", "task", "stop", "a")
	expectOutput(t, w, "[call id-3]", "task", "stop", "a", "--call-id", "once")
	expectOutput(t, w, "[call id-3]", "task", "stop", "a", "--call-id", "once")
	w.Server.Until(t, "the answers are delivered", w.UID, func(k *daemontest.Task) bool {
		var delivered []bool
		for _, c := range k.Calls {
			delivered = append(delivered, c.Delivered)
		}
		return cmp.Equal(delivered, []bool{true, true, true})
	})
}

func TestTheProgramWaitsUntilThereIsAnAnswer(t *testing.T) {
	var calls atomic.Int64
	w := supervisor(t, func(r *daemonv1.CallToolRequest) *daemonv1.CallToolResponse {
		n := calls.Add(1)
		if r.GetTool() == "task_wait" {
			if n == 1 {
				return &daemonv1.CallToolResponse{Text: "Task a runs.", Data: []byte(`{"waiting":true}`)}
			}
			return &daemonv1.CallToolResponse{Text: "Task a has completed.", Data: []byte(`{"waiting":false}`)}
		}
		return &daemonv1.CallToolResponse{Pending: n < 6, Text: "Task a is made."}
	})
	if out, err := clew(t, w, "task", "wait"); err != nil || out != "Task a has completed.\n" {
		t.Errorf("the program printed %q, error %v", out, err)
	}
	expectOutput(t, w, "Task a is made.", "task", "create", "a", "-p", "p")
}

func TestTheProgramWaitsNoLongerThanItIsTold(t *testing.T) {
	w := supervisor(t, func(*daemonv1.CallToolRequest) *daemonv1.CallToolResponse {
		return &daemonv1.CallToolResponse{Text: "Task a runs: call again.", Data: []byte(`{"waiting":true}`)}
	})
	expectError(t, w, "Task a runs: call again.", "task", "wait", "--timeout", "1ms")
}
