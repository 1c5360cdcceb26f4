package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/apiserver"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// server is the API server of this package's tests, set once by TestMain.
var server *apiserver.Server

func TestMain(m *testing.M) { apiserver.Main(m, &server) }

// bench is a namespace of the API server, and the plugin to act in it.
type bench struct {
	*testing.T
	ctx        context.Context
	namespace  string
	kubeconfig string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "cli-"}}
	if err := server.Client.Create(ctx, ns); err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, ctx: ctx, namespace: ns.Name}
	b.kubeconfig = b.write(clientcmdapi.Cluster{Server: server.Config.Host, CertificateAuthorityData: server.Config.CAData},
		clientcmdapi.AuthInfo{ClientCertificateData: server.Config.CertData, ClientKeyData: server.Config.KeyData})
	return b
}

// write writes a kubeconfig of one cluster and user.
func (b *bench) write(cluster clientcmdapi.Cluster, user clientcmdapi.AuthInfo) string {
	b.Helper()
	file := filepath.Join(b.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": &cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"test": &user},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "test", Namespace: b.namespace}},
		CurrentContext: "test",
	}, file)
	if err != nil {
		b.Fatal(err)
	}
	return file
}

// clew runs the plugin. answer is typed if it asks.
func (b *bench) clew(answer string, args ...string) (stdout, stderr string, err error) {
	b.Helper()
	var out, errOut bytes.Buffer
	cmd := New(genericiooptions.IOStreams{In: strings.NewReader(answer), Out: &out, ErrOut: &errOut}, Options{
		Clock: func() time.Time { return noon }, Location: time.UTC, Interactive: answer != "",
		NewID: func() (string, error) { return "cli-abcdefgh", nil },
	})
	cmd.SetArgs(append([]string{"--kubeconfig", b.kubeconfig}, args...))
	err = cmd.ExecuteContext(b.ctx)
	return out.String(), errOut.String(), err
}

// must runs the plugin and wants it to succeed.
func (b *bench) must(args ...string) (stdout, stderr string) {
	b.Helper()
	stdout, stderr, err := b.clew("", args...)
	if err != nil {
		b.Fatalf("kubectl clew %s: %v\n%s", strings.Join(args, " "), err, stderr)
	}
	return stdout, stderr
}

// task makes a task whose condition Succeeded has the reason.
func (b *bench) task(name, reason string) *v1alpha1.Task {
	b.Helper()
	task := builders.Task(name, builders.InNamespace(b.namespace))
	if reason == v1alpha1.ReasonSuspended {
		builders.Suspended(task)
	}
	b.try(server.Client.Create(b.ctx, task))
	if reason != "" {
		task.Status.MessageCount = 40
		setSucceeded(task, reason)
		b.try(server.Client.Status().Update(b.ctx, task))
	}
	return task
}

func setSucceeded(task *v1alpha1.Task, reason string) {
	status := metav1.ConditionUnknown
	switch reason {
	case v1alpha1.ReasonCompleted:
		status = metav1.ConditionTrue
	case v1alpha1.ReasonAgentFailed:
		status = metav1.ConditionFalse
	}
	apimeta.SetStatusCondition(&task.Status.Conditions, metav1.Condition{Type: v1alpha1.TaskSucceeded, Status: status, Reason: reason})
}

// checkpoint makes a checkpoint of the task that is taken already.
func (b *bench) checkpoint(task *v1alpha1.Task, number int64) *v1alpha1.Checkpoint {
	b.Helper()
	c := takenCheckpoint(number, fmt.Sprintf("%s-%d", task.Name, number))
	c.Namespace, c.Spec.TaskRef.Name, c.Status.TaskUID = b.namespace, task.Name, string(task.UID)
	for i := range c.Status.Conditions {
		c.Status.Conditions[i].LastTransitionTime = metav1.NewTime(noon)
	}
	status := c.Status
	b.try(server.Client.Create(b.ctx, &c))
	c.Status = status
	b.try(server.Client.Status().Update(b.ctx, &c))
	return &c
}

func (b *bench) try(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) get(object client.Object) {
	b.Helper()
	b.try(server.Client.Get(b.ctx, client.ObjectKeyFromObject(object), object))
}

// playManager watches until act has changed an object's status, once.
func playManager[T client.Object](b *bench, list client.ObjectList, act func(T) bool) {
	b.Helper()
	c, err := client.NewWithWatch(server.Config, client.Options{Scheme: server.Scheme})
	b.try(err)
	w, err := c.Watch(b.ctx, list, client.InNamespace(b.namespace))
	b.try(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			if object, ok := event.Object.(T); ok && act(object) {
				if err := server.Client.Status().Update(b.ctx, object); err != nil {
					b.Errorf("play the manager: %v", err)
				}
				return
			}
		}
	}()
	b.Cleanup(func() { w.Stop(); <-done })
}

func TestResume(t *testing.T) {
	b := newBench(t)
	task := b.task("sleeper", v1alpha1.ReasonSuspended)
	playManager(b, &v1alpha1.TaskList{}, func(t *v1alpha1.Task) bool {
		if t.Spec.Resume == nil {
			return false
		}
		t.Status.Resume = &v1alpha1.OperationStatus{ID: t.Spec.Resume.ID, State: v1alpha1.OperationCompleted}
		setSucceeded(t, v1alpha1.ReasonRunning)
		return true
	})
	out, _ := b.must("resume", "sleeper", "--prompt", "Go on.", "--on-drift", "preserve")
	if out != "task.clew.dev/sleeper resumed\n" {
		t.Errorf("printed %q", out)
	}
	b.get(task)
	want := v1alpha1.Resume{ID: "cli-abcdefgh", Mode: v1alpha1.ResumeContinue, Prompt: "Go on.", OnDrift: v1alpha1.OnDriftPreserve}
	if *task.Spec.Resume != want || task.Spec.OperatingMode != v1alpha1.OperatingModeRunning {
		t.Errorf("asked for %+v, operating mode %s", *task.Spec.Resume, task.Spec.OperatingMode)
	}
	owned := ""
	for _, m := range task.ManagedFields {
		if m.Manager == fieldManager {
			owned = m.FieldsV1.GetRawString()
		}
	}
	if !strings.Contains(owned, `"f:resume"`) || strings.Contains(owned, `"f:template"`) {
		t.Errorf("the plugin owns %s", owned)
	}
	_, _, err := b.clew("", "resume", "sleeper")
	wantError(t, err, "is at work (Running)")
}

func TestResumeClearsThePromptBefore(t *testing.T) {
	b := newBench(t)
	task := b.task("again", v1alpha1.ReasonSuspended)
	task.Spec.OperatingMode = v1alpha1.OperatingModeRunning
	task.Spec.Resume = &v1alpha1.Resume{ID: "first", Prompt: "Only this once."}
	b.try(server.Client.Update(b.ctx, task))
	b.must("resume", "again", "--wait=false")
	b.get(task)
	if task.Spec.Resume.Prompt != "" || task.Spec.Resume.ID != "cli-abcdefgh" {
		t.Errorf("asked for %+v", task.Spec.Resume)
	}
}

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
	if want := "task.clew.dev/wanderer rewound to checkpoint 1; what stood before is checkpoint 4 and branch clew/before-cli-abcdefgh\n"; out != want {
		t.Errorf("printed %q; want %q", out, want)
	}
	for _, part := range []string{"Rewind of task wanderer", "checkpoint 1 (wanderer-1)", "2 checkpoints, which can still be gone to", "the files; agent state and conversation stay", "branch clew/before-cli-abcdefgh", "goes on from there (it is Running now)", "Rewind? [y/N]"} {
		if !strings.Contains(errOut, part) {
			t.Errorf("the preview lacks %q:\n%s", part, errOut)
		}
	}
	b.get(task)
	want := v1alpha1.Rewind{
		ID: "cli-abcdefgh", To: v1alpha1.RewindTarget{CheckpointRef: &v1alpha1.NameReference{Name: "wanderer-1"}},
		Scope: v1alpha1.RewindCode, Preserve: v1alpha1.PreserveBranch, OnDrift: v1alpha1.OnDriftFail,
	}
	if diff := cmp.Diff(want, *task.Spec.Rewind); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
}

func TestRewindChangesNothingWithoutAYes(t *testing.T) {
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
		{"no", "n\n", []string{"--to", "1"}, "nothing was done"},
		{"a bare return", "\n", []string{"--to", "1"}, "nothing was done"},
		{"no terminal", "", []string{"--to", "1"}, "add --yes"},
		{"dry run", "", []string{"--to", "1", "--dry-run=server"}, ""},
		{"no target", "", []string{"--yes"}, "kubectl clew checkpoint list careful"},
		{"two targets", "", []string{"--to", "1", "--back", "2", "--yes"}, "give one of --to"},
		{"two scopes", "", []string{"--to", "1", "--code", "--scope", "both", "--yes"}, "give one of --code"},
		{"no message", "", []string{"--to-message", "0", "--yes"}, "from 1"},
		{"not back", "", []string{"--back", "-1", "--yes"}, "from 1"},
		{"no time", "", []string{"--to-time", "earlier", "--yes"}, "it must be a duration"},
		{"unknown number", "", []string{"--to", "8", "--yes"}, "they run from 1 to 1"},
		{"branch without preserving one", "", []string{"--to", "1", "--yes", "--branch", "a", "--preserve", "stash"}, "--preserve Stash"},
		{"a branch name that git would refuse", "", []string{"--to", "1", "--yes", "--branch", "-x"}, "it must not begin with a dash"},
		{"an unknown scope", "", []string{"--to", "1", "--yes", "--scope", "all"}, "must be one of Code, Conversation, Both"},
		{"client-side dry run", "", []string{"--to", "1", "--dry-run=client"}, "must be none or server"},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, _, err := b.clew(test.answer, append([]string{"rewind", "careful"}, test.args...)...)
			wantError(t, err, test.err)
			if err == nil && out != "task.clew.dev/careful rewind to checkpoint 1 requested (server dry run)\n" {
				t.Errorf("printed %q", out)
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

func TestCheckpointCreate(t *testing.T) {
	b := newBench(t)
	b.task("worker", v1alpha1.ReasonRunning)
	playManager(b, &v1alpha1.CheckpointList{}, func(c *v1alpha1.Checkpoint) bool {
		c.Status = takenCheckpoint(5, "any").Status
		for i := range c.Status.Conditions {
			c.Status.Conditions[i].LastTransitionTime = metav1.NewTime(noon)
		}
		return true
	})
	out, progress := b.must("checkpoint", "create", "worker", "-m", "Before lunch")
	if want := "checkpoint.clew.dev/worker-abcdefgh created: number 5 of worker, 3 files changed\n"; out != want {
		t.Errorf("printed %q; want %q", out, want)
	}
	if !strings.Contains(progress, "the gitstore has it\n") || strings.Contains(progress, "\x1b") {
		t.Errorf("progress off a terminal: %q", progress)
	}
	out, _ = b.must("checkpoint", "create", "worker", "--name", "other", "--dry-run=server", "-o", "jsonpath={.kind} {.metadata.name} {.spec.taskRef.name}")
	if out != "Checkpoint other worker" {
		t.Errorf("printed %q", out)
	}
	_, _, err := b.clew("", "checkpoint", "create", "nobody")
	wantError(t, err, "kubectl get tasks.clew.dev -n "+b.namespace)
	_, _, err = b.clew("", "checkpoint", "create", "worker", "--name", "worker-abcdefgh")
	wantError(t, err, "choose another name")
	_, _, err = b.clew("", "checkpoint", "create")
	wantError(t, err, "name the task: kubectl clew checkpoint create TASK")
}

func TestCheckpointListAndShow(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonRunning)
	b.checkpoint(task, 2)
	b.checkpoint(task, 1)
	b.checkpoint(b.task("another", v1alpha1.ReasonRunning), 1)
	out, _ := b.must("checkpoint", "list", "worker", "-o", "name")
	if out != "checkpoint.clew.dev/worker-1\ncheckpoint.clew.dev/worker-2\n" {
		t.Errorf("printed %q", out)
	}
	out, _ = b.must("checkpoint", "list", "--no-headers")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 3 || !strings.HasPrefix(lines[0], "another") {
		t.Errorf("printed %q", out)
	}
	out, _ = b.must("checkpoint", "list", "worker", "-o", "json")
	list := &v1alpha1.CheckpointList{}
	if err := json.Unmarshal([]byte(out), list); err != nil || len(list.Items) != 2 || list.Kind != "CheckpointList" {
		t.Errorf("%v in %s", err, out)
	}
	byName, _ := b.must("checkpoint", "show", "worker-2")
	byNumber, _ := b.must("checkpoint", "show", "worker", "2")
	if byName != byNumber || !strings.Contains(byName, "Number:         2\n") {
		t.Errorf("printed %q and %q", byName, byNumber)
	}
	_, _, err := b.clew("", "checkpoint", "list", "nobody")
	wantError(t, err, `there is no task "nobody"`)
	_, errOut := b.must("checkpoint", "list", "-n", "default")
	if errOut != "No checkpoints in namespace default yet.\n" {
		t.Errorf("said %q", errOut)
	}
}

func TestFork(t *testing.T) {
	b := newBench(t)
	task := b.task("source", v1alpha1.ReasonRunning)
	b.checkpoint(task, 1)
	playManager(b, &v1alpha1.ForkList{}, func(f *v1alpha1.Fork) bool {
		f.Status.Source = &v1alpha1.SourceStatus{TaskUID: string(task.UID), Checkpoint: 1, Commit: "c0ffee"}
		f.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ForkComplete, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonForked, LastTransitionTime: metav1.NewTime(noon)}}
		return true
	})
	out, _ := b.must("fork", "source", "--name", "branchling", "--from", "1", "--prompt", "Otherwise.", "--no-conversation")
	if want := "fork.clew.dev/branchling created: task.clew.dev/branchling begins at checkpoint 1 of source\n"; out != want {
		t.Errorf("printed %q; want %q", out, want)
	}
	f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "branchling"}}
	b.get(f)
	if f.Spec.CheckpointRef == nil || f.Spec.CheckpointRef.Name != "source-1" || f.Spec.Conversation != v1alpha1.ConversationExclude ||
		f.Spec.Variants[0].Name != "branchling" || *f.Spec.Variants[0].Prompt != "Otherwise." {
		t.Errorf("asked for %+v", f.Spec)
	}
	_, _, err := b.clew("", "fork", "source")
	wantError(t, err, "--name")
	_, _, err = b.clew("", "fork", "source", "--name", "source")
	wantError(t, err, "a fork cannot have its source's name")
}

func TestNoClewNoReach(t *testing.T) {
	b := newBench(t)
	_, _, err := b.clew("", "task", "history", "any")
	wantError(t, err, "serves no history of Clew")
	_, _, err = b.clew("", "checkpoint", "list", "--token", "wrong", "--client-certificate", "/dev/null")
	if err == nil {
		t.Error("a wrong certificate was taken")
	}
	_, _, err = b.clew("", "checkpoint", "list", "-s", "https://127.0.0.1:1")
	wantError(t, err, "cannot be reached")
	_, _, err = b.clew("", "checkpoint", "list", "--as", "nobody")
	wantError(t, err, "ask an administrator")
}

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
		{[]string{"rewind", "worker", "--scope", ""}, "Conversation"},
		{[]string{"checkpoint", "show", "worker", ""}, "worker-1"},
		{[]string{"timeline", "--type", ""}, "rewind"},
		{[]string{"timeline", "-n", "cli-"}, b.namespace},
		{[]string{"timeline", "--context", ""}, "test"},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			var out, errOut bytes.Buffer
			cmd := New(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut}, Options{})
			cmd.SetArgs(append([]string{"__complete", "--kubeconfig", b.kubeconfig}, test.args...))
			b.try(cmd.ExecuteContext(b.ctx))
			if !strings.Contains(out.String(), test.want) {
				t.Errorf("completed\n%s%s\nwithout %q", &out, &errOut, test.want)
			}
		})
	}
}

// fakeHistory answers as the history API does, two entries a page.
func fakeHistory(t *testing.T, entries int) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const prefix = "/apis/history.clew.dev/v1alpha1/namespaces/"
		path, ok := strings.CutPrefix(r.URL.Path, prefix)
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, path, _ = strings.Cut(path, "/")
		w.Header().Set("Content-Type", "application/json")
		switch path {
		case "tasks/talker/conversation":
			first := 1
			if tail := 0; r.URL.Query().Has("tail") {
				_, _ = fmt.Sscanf(r.URL.Query().Get("tail"), "%d", &tail)
				first = entries - tail + 1
			}
			_, _ = fmt.Sscanf(r.URL.Query().Get("continue"), "from-%d", &first)
			limit := 2
			_, _ = fmt.Sscanf(r.URL.Query().Get("limit"), "%d", &limit)
			page := &historyv1.ConversationList{}
			for n := first; n <= entries && len(page.Items) < min(2, limit); n++ {
				page.Items = append(page.Items, entry(int64(n), "assistant", fmt.Sprintf("message %d", n)))
			}
			if next := first + len(page.Items); next <= entries {
				left := int64(entries - next + 1)
				page.Continue, page.RemainingItemCount = fmt.Sprintf("from-%d", next), &left
			}
			_ = json.NewEncoder(w).Encode(page)
		case "timeline", "tasks/talker/timeline":
			_ = json.NewEncoder(w).Encode(&historyv1.TimelineEventList{Items: []historyv1.TimelineEvent{
				{Time: metav1.NewMicroTime(noon.Add(time.Minute)), Task: "talker", Type: "checkpoint", Reason: "CheckpointCreated", Message: r.URL.RawQuery},
				{Time: metav1.NewMicroTime(noon), Task: "talker", Type: "task", Reason: "TaskStarted"},
			}})
		case "tasks/silent/conversation":
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonServiceUnavailable, Code: 503, Message: "Postgres is away",
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}})
		default:
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: 404, Message: "there is no history of that task",
				Details: &metav1.StatusDetails{Name: "x"}, TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}})
		}
	}))
	t.Cleanup(server.Close)
	return server
}

func TestHistory(t *testing.T) {
	b := newBench(t)
	b.kubeconfig = b.write(clientcmdapi.Cluster{Server: fakeHistory(t, 5).URL}, clientcmdapi.AuthInfo{})
	out, errOut := b.must("task", "history", "talker")
	if strings.Count(out, "message ") != 5 || !strings.Contains(out, "   5  assistant  2026-11-21 12:00:05\n      message 5\n") || errOut != "" {
		t.Errorf("printed %q, %q", out, errOut)
	}
	out, errOut = b.must("task", "history", "talker", "--limit", "3")
	if strings.Count(out, "message ") != 3 || errOut != "2 messages more; --limit 0 prints all.\n" {
		t.Errorf("printed %q, %q", out, errOut)
	}
	out, _ = b.must("task", "history", "talker", "-o", "yaml")
	if !strings.HasPrefix(out, "apiVersion: history.clew.dev/v1alpha1\n") || strings.Count(out, "text: message") != 5 {
		t.Errorf("printed %q", out)
	}
	out, _ = b.must("task", "history", "talker", "--tail", "1")
	if strings.Count(out, "message ") != 1 || !strings.Contains(out, "message 5") {
		t.Errorf("printed %q", out)
	}
	_, _, err := b.clew("", "task", "history", "talker", "--tail", "501")
	wantError(t, err, "it must be from 0 to 500")
	_, _, err = b.clew("", "task", "history", "silent")
	wantError(t, err, "Postgres is away")
	_, _, err = b.clew("", "task", "history", "nobody")
	wantError(t, err, "there is no history of that task")
}

func TestTimeline(t *testing.T) {
	b := newBench(t)
	b.kubeconfig = b.write(clientcmdapi.Cluster{Server: fakeHistory(t, 0).URL}, clientcmdapi.AuthInfo{})
	out, _ := b.must("timeline", "talker", "--type", "checkpoint,rewind", "--since", "2h", "--limit", "2")
	lines := strings.Split(out, "\n")
	if len(lines) != 4 || !strings.Contains(lines[1], "TaskStarted") || !strings.Contains(lines[2], "CheckpointCreated") {
		t.Fatalf("printed %q", out)
	}
	for _, part := range []string{"limit=2", "type=checkpoint%2Crewind", "since=2026-11-21T10%3A00%3A00Z"} {
		if !strings.Contains(lines[2], part) {
			t.Errorf("asked with %q, without %q", lines[2], part)
		}
	}
	out, _ = b.must("timeline", "-o", "json")
	list := &historyv1.TimelineEventList{}
	if err := json.Unmarshal([]byte(out), list); err != nil || len(list.Items) != 2 || list.Kind != "TimelineEventList" {
		t.Errorf("%v in %s", err, out)
	}
	for _, test := range []struct{ flag, value, err string }{
		{"--since", "yesterday", "it must be a duration"},
		{"--limit", "-1", "it must be 0 or more"},
		{"-o", "table2", "must be one of table, json, yaml"},
	} {
		_, _, err := b.clew("", "timeline", test.flag, test.value)
		wantError(t, err, test.err)
	}
}
