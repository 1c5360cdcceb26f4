package cli

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

// requests are what the history API was asked, as "VERB path?query", and the
// answers it gives by "VERB path".
type requests struct {
	t       *testing.T
	asked   []string
	bodies  []string
	answers map[string]any
}

// withHistory puts a history API before the API server of the tests.
func (b *bench) withHistory(answers map[string]any) *requests {
	b.Helper()
	r := &requests{t: b.T, answers: answers}
	target, err := url.Parse(server.Config.Host)
	b.try(err)
	transport, err := rest.TransportFor(server.Config)
	b.try(err)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(p *httputil.ProxyRequest) { p.SetURL(target) },
		Transport: transport, FlushInterval: -1,
	}
	mux := http.NewServeMux()
	mux.Handle("/", proxy)
	mux.Handle("/apis/history.clew.dev/v1alpha1/namespaces/"+b.namespace+"/", r)
	front := httptest.NewServer(mux)
	b.Cleanup(front.Close)
	b.kubeconfig = b.write(clientcmdapi.Cluster{Server: front.URL}, clientcmdapi.AuthInfo{})
	return r
}

func (r *requests) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	_, path, _ := strings.Cut(strings.TrimPrefix(q.URL.Path, "/apis/history.clew.dev/v1alpha1/namespaces/"), "/")
	body := io.Reader(q.Body)
	if q.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(q.Body)
		if err != nil {
			r.t.Error(err)
			return
		}
		body = unzipped
	}
	content, err := io.ReadAll(body)
	if err != nil {
		r.t.Error(err)
	}
	r.asked = append(r.asked, q.Method+" "+path+"?"+q.URL.RawQuery)
	r.bodies = append(r.bodies, string(content))
	w.Header().Set("Content-Type", "application/json")
	switch answer := r.answers[q.Method+" "+path].(type) {
	case nil:
		failed(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the history has nothing of this kind")
	case string:
		_, _ = io.WriteString(w, answer)
	case metav1.Status:
		failed(w, int(answer.Code), answer.Reason, answer.Message)
	default:
		_ = json.NewEncoder(w).Encode(answer)
	}
}

func failed(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message, Details: &metav1.StatusDetails{Name: "x"},
	})
}

// query of the last request.
func (r *requests) query() string {
	r.t.Helper()
	if len(r.asked) == 0 {
		r.t.Fatal("nothing was asked")
	}
	_, query, _ := strings.Cut(r.asked[len(r.asked)-1], "?")
	return query
}

func taskHistoryOf(name, uid string) historyv1.TaskHistory {
	return historyv1.TaskHistory{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), CreationTimestamp: metav1.NewTime(noon.Add(-3 * time.Hour))},
		State:      "Completed", Preview: "Fix the login.\nThen\x1b[2J stop.", Updated: metav1.NewMicroTime(noon.Add(-time.Minute)),
		Messages: 40, ToolCalls: 12, InputTokens: 10_000, OutputTokens: 2300, CostMicroUSD: 12_300, Checkpoints: 4, Tools: []string{"Bash", "Edit"},
		Models: []historyv1.ModelUsage{{}, {Model: "claude-x"}},
	}
}

func TestSearch(t *testing.T) {
	b := newBench(t)
	r := b.withHistory(map[string]any{"GET search": historyv1.SearchResultList{Items: []historyv1.SearchResult{
		{Task: "fix-login", Position: 12, Time: metav1.NewMicroTime(noon), Role: "assistant", Tool: "Bash", RankMillionths: 60_793,
			Snippet: []historyv1.SnippetPart{{Text: "run the "}, {Text: "tests", Match: true}, {Text: "\nagain"}}},
		{Task: "old", Position: 3, Time: metav1.NewMicroTime(noon), Role: "user", RankMillionths: 1000, Snippet: []historyv1.SnippetPart{{Text: "tests", Match: true}}},
	}}})
	out, errOut := b.must("search", "run", "tests", "--task", "fix-login", "--role", "assistant", "--since", "2h", "--limit", "5")
	want := `RANK    TASK        POSITION   WHO                TIME                  WORDS
0.061   fix-login   12         assistant → Bash   2026-11-21 12:00:00   run the tests again
0.001   old         3          user               2026-11-21 12:00:00   tests
`
	if diff := cmp.Diff(want, out); diff != "" || errOut != "" {
		t.Errorf("-want +got\n%s%s", diff, errOut)
	}
	if want := "limit=5&q=run+tests&role=assistant&since=2026-11-21T10%3A00%3A00Z&task=fix-login"; r.query() != want {
		t.Errorf("asked with %q; want %q", r.query(), want)
	}
	out, _ = b.must("search", "tests", "-o", "json")
	list := &historyv1.SearchResultList{}
	if err := json.Unmarshal([]byte(out), list); err != nil || len(list.Items) != 2 || list.Kind != "SearchResultList" || !list.Items[0].Snippet[1].Match {
		t.Errorf("%v in %s", err, out)
	}
	r.answers["GET search"] = historyv1.SearchResultList{}
	if out, errOut := b.must("search", "--", "-nothing"); out != "" || !strings.Contains(errOut, "Nothing was found") {
		t.Errorf("printed %q, said %q", out, errOut)
	}
	_, _, err := b.clew("", "search")
	wantError(t, err, "say what to search for")
	_, _, err = b.clew("", "search", "x", "--since", "once")
	wantError(t, err, "it must be a duration")
	r.answers["GET search"] = metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: "User bob may not list search"}
	_, _, err = b.clew("", "search", "x")
	wantError(t, err, "ask an administrator")
}

func TestTaskList(t *testing.T) {
	b := newBench(t)
	page := historyv1.TaskHistoryList{Items: []historyv1.TaskHistory{taskHistoryOf("fix-login", "u2"), taskHistoryOf("old", "u1")}}
	page.Items[1].CostMicroUSD, page.Items[1].State = 0, ""
	r := b.withHistory(map[string]any{"GET taskhistories": page})
	out, _ := b.must("task", "list")
	want := `NAME        STATE       MESSAGES   TOKENS   COST      CHECKPOINTS   AGE    FIRST WORDS
fix-login   Completed   40         12.3k    $0.0123   4             3h     Fix the login. Then\x1b[2J stop.
old         -           40         12.3k    -         4             3h     Fix the login. Then\x1b[2J stop.
`
	want = strings.ReplaceAll(want, "3h  ", "3h ")
	if diff := cmp.Diff(squeezed(want), squeezed(out)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if r.query() != "limit=50&sort=created" {
		t.Errorf("asked with %q", r.query())
	}
	b.must("task", "list", "--name", "fix", "--state", "Completed", "--tool", "Bash", "--min-tokens", "20k", "--min-cost", "$0.50", "--since", "30d", "--until", "2026-11-20", "--sort", "cost", "--limit", "3")
	if want := "limit=3&minCost=0.50&minTokens=20000&name=fix&since=2026-10-22T12%3A00%3A00Z&sort=cost&state=Completed&tool=Bash&until=2026-11-20T00%3A00%3A00Z"; r.query() != want {
		t.Errorf("asked with %q; want %q", r.query(), want)
	}
	if out, _ := b.must("task", "list", "-o", "wide", "--no-headers"); !strings.Contains(out, "Bash,Edit") || !strings.Contains(out, "u2") || strings.Contains(out, "NAME") {
		t.Errorf("printed %q", out)
	}
	if out, _ := b.must("task", "list", "-o", "name"); out != "taskhistory.history.clew.dev/fix-login\ntaskhistory.history.clew.dev/old\n" {
		t.Errorf("printed %q", out)
	}
	for _, test := range []struct{ flag, value, err string }{
		{"--min-tokens", "many", "must be a number"},
		{"--min-cost", "much", "amount of US dollars"},
		{"--sort", "size", "must be one of newest, updated, cost, tokens, messages, name"},
		{"--limit", "-1", "0 or more"},
		{"--until", "later", "--until"},
	} {
		_, _, err := b.clew("", "task", "list", test.flag, test.value)
		wantError(t, err, test.err)
	}
	page.Items = nil
	r.answers["GET taskhistories"] = page
	if _, errOut := b.must("task", "list"); !strings.Contains(errOut, "has no task that matches") {
		t.Errorf("said %q", errOut)
	}
}

func squeezed(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

const exported = `{"kind":"task","body":{"name":"fix-login"}}
{"kind":"message","body":{"text":"a"}}
{"kind":"message","body":{"text":"b"}}
{"kind":"checkpoint","body":{}}
{"kind":"end","body":{}}
`

func TestTaskExport(t *testing.T) {
	b := newBench(t)
	r := b.withHistory(map[string]any{"GET taskhistories/fix-login/export": exported})
	if out, errOut := b.must("task", "export", "fix-login"); out != exported || errOut != "" {
		t.Errorf("printed %q, said %q", out, errOut)
	}
	folder := t.TempDir()
	file := filepath.Join(folder, "a.jsonl")
	out, _ := b.must("task", "export", "fix-login", "--uid", "u1", "-f", file)
	if want := fmt.Sprintf("history of task fix-login exported to %s: 2 messages and 1 checkpoint, %d B\n", file, len(exported)); out != want {
		t.Errorf("printed %q; want %q", out, want)
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != exported {
		t.Errorf("%v, %q", err, content)
	}
	if r.query() != "uid=u1" {
		t.Errorf("asked with %q", r.query())
	}
	// What broke off leaves what was there.
	r.answers["GET taskhistories/fix-login/export"] = strings.Split(exported, `{"kind":"end"`)[0]
	_, _, err := b.clew("", "task", "export", "fix-login", "-f", file)
	wantError(t, err, "broke off after 2 messages and 1 checkpoint")
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
	_, _, err = b.clew("", "task", "export", "unknown")
	wantError(t, err, "the history has nothing of this kind")
	_, _, err = b.clew("", "task", "export", "fix-login", "-f", filepath.Join(folder, "none", "a"))
	wantError(t, err, "cannot be written")
}

func TestTaskImport(t *testing.T) {
	b := newBench(t)
	r := b.withHistory(map[string]any{"POST taskhistories": taskHistoryOf("fix-login", "u9")})
	file := filepath.Join(t.TempDir(), "a.jsonl")
	b.try(os.WriteFile(file, []byte(exported), 0o600))
	out, _ := b.must("task", "import", "-f", file)
	if out != "history of task fix-login imported: 40 messages and 4 checkpoints, UID u9\n" {
		t.Errorf("printed %q", out)
	}
	if r.bodies[0] != exported {
		t.Errorf("sent %q", r.bodies[0])
	}
	if _, _, err := b.clew(exported, "task", "import", "-f", "-"); err != nil || r.bodies[1] != exported {
		t.Errorf("%v, sent %q", err, r.bodies[1:])
	}
	_, _, err := b.clew("", "task", "import")
	wantError(t, err, "-f FILE")
	_, _, err = b.clew("something else", "task", "import", "-f", "-")
	wantError(t, err, "is no history that")
	r.answers["POST taskhistories"] = metav1.Status{Code: 409, Reason: metav1.StatusReasonAlreadyExists, Message: "the task with the UID u9 is there already"}
	_, _, err = b.clew("", "task", "import", "-f", file)
	wantError(t, err, "is there already")
}

func TestTaskDeleteHistory(t *testing.T) {
	b := newBench(t)
	const path = "taskhistories/fix-login"
	r := b.withHistory(map[string]any{
		"GET " + path:    taskHistoryOf("fix-login", "u2"),
		"DELETE " + path: historyv1.HistoryDeletion{Messages: 38, Checkpoints: 4, Events: 20, Refs: 9, Repositories: 1, Bytes: 5 << 20},
	})
	out, errOut, err := b.clew("yes\n", "task", "delete-history", "fix-login")
	b.try(err)
	if want := "history of task fix-login deleted: its conversation, with 38 messages that no other task has, 4 checkpoints, 20 events; 9 refs of code in the gitstore, which takes 5.0 MiB less\n"; out != want {
		t.Errorf("printed %q; want %q", out, want)
	}
	for _, part := range []string{"Deletion of the history of task fix-login, for good", "u2", "3h ago, last seen", "Completed", "its conversation of 40 messages, 4 checkpoints with their code", "the beginning of a fork, and messages that another task has too", "Delete it for good? [y/N]"} {
		if !strings.Contains(errOut, part) {
			t.Errorf("the preview lacks %q:\n%s", part, errOut)
		}
	}
	// Exactly the one that was shown.
	if r.query() != "uid=u2" {
		t.Errorf("asked with %q", r.query())
	}
	count := len(r.asked)
	_, _, err = b.clew("no\n", "task", "delete-history", "fix-login")
	wantError(t, err, "nothing was done")
	_, _, err = b.clew("", "task", "delete-history", "fix-login")
	wantError(t, err, "add --yes")
	for _, asked := range r.asked[count:] {
		if strings.HasPrefix(asked, "DELETE") {
			t.Errorf("asked %s without a yes", asked)
		}
	}
	r.answers["DELETE "+path] = historyv1.HistoryDeletion{DryRun: true, Messages: 40, Checkpoints: 4}
	out, _ = b.must("task", "delete-history", "fix-login", "--dry-run=server")
	if out != "history of task fix-login would be deleted: its conversation of 40 messages, and 4 checkpoints (server dry run)\n" || r.query() != "dryRun=All&uid=u2" {
		t.Errorf("printed %q, asked %q", out, r.query())
	}
	r.answers["DELETE "+path] = metav1.Status{Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Message: "the gitstore cannot be reached; delete it again, and it goes on where it stopped",
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: historyv1.CauseDeletionUnfinished}}}}
	_, _, err = b.clew("", "task", "delete-history", "fix-login", "--yes")
	wantError(t, err, "the gitstore cannot be reached; delete it again")
	r.answers["DELETE "+path] = metav1.Status{Code: 504, Reason: metav1.StatusReasonTimeout, Message: "timeout"}
	_, _, err = b.clew("", "task", "delete-history", "fix-login", "--yes")
	wantError(t, err, "it goes on")
	_, _, err = b.clew("", "task", "delete-history", "unknown", "--yes")
	wantError(t, err, "the history has nothing of this kind")

	task := b.task("fix-login", v1alpha1.ReasonCompleted)
	r.answers["GET "+path] = taskHistoryOf("fix-login", string(task.UID))
	_, _, err = b.clew("", "task", "delete-history", "fix-login", "--yes")
	wantError(t, err, "kubectl delete tasks.clew.dev fix-login -n "+b.namespace)
}

func TestRewindToAPlaceInTheConversation(t *testing.T) {
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
		to          string
		preview     []string
	}{
		{"message", "message=13", []string{"--to-message", "13", "--conversation"}, `{"message":13}`, []string{
			"message 13", "to message 12, where the turn ends", "12 assistant: All tests pass.", "checkpoint 1 (wanderer-1)", "the conversation and the agent's own state; the files stay", "12 messages, of 41 now",
		}},
		{"time", "time=2026-11-21T11%3A59%3A59.999Z", []string{"--to-time", "2026-11-21 11:59:59"}, `{"time":"2026-11-21T11:59:59.999Z"}`, []string{
			"2026-11-21 11:59:59", "9 messages, as at the checkpoint, of 41 now",
		}},
		{"back", "back=4", []string{"--back", "4", "--code"}, `{"messagesBack":4}`, []string{
			"4 messages back", "the files; agent state and conversation stay",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, errOut := b.must(append([]string{"rewind", "wanderer", "--yes", "--wait=false"}, test.args...)...)
			for _, part := range append(test.preview, "Rewind of task wanderer") {
				if !strings.Contains(errOut, part) {
					t.Errorf("the preview lacks %q:\n%s", part, errOut)
				}
			}
			if !strings.HasPrefix(out, "task.clew.dev/wanderer rewind to ") || !strings.HasSuffix(out, " requested\n") {
				t.Errorf("printed %q", out)
			}
			b.get(task)
			if to, err := json.Marshal(task.Spec.Rewind.To); err != nil || string(to) != test.to && test.name != "time" || task.Spec.Rewind.To.CheckpointRef != nil {
				t.Errorf("asked for %s, %v; want %s", to, err, test.to)
			}
			found := false
			for _, asked := range r.asked {
				found = found || strings.Contains(asked, "position?"+test.query)
			}
			if !found {
				t.Errorf("asked %q; want %q", r.asked, test.query)
			}
			// Ready for the next.
			task.Spec.Rewind = nil
			b.try(server.Client.Update(b.ctx, task))
		})
	}
	// Somebody who may not read the history is told less.
	r.answers["GET tasks/wanderer/conversation/position"] = metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: "you may not"}
	_, errOut := b.must("rewind", "wanderer", "--back", "1", "--dry-run=server")
	if !strings.Contains(errOut, "not known here") {
		t.Errorf("the preview:\n%s", errOut)
	}
}

// What is not there is told before anybody is asked, and nothing is written.
func TestRewindToAPlaceThatIsNotThereIsAnError(t *testing.T) {
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
		{nil, []string{"--to-message", "99"}, "the conversation of task short has no message 99; `kubectl clew task history short` shows what there is"},
		{nil, []string{"--back", "99"}, "the conversation of task short is too short to go 99 messages back"},
		{historyv1.ConversationPoint{Messages: 4}, []string{"--back", "4"}, "the conversation of task short is too short to go 4 messages back"},
		{historyv1.ConversationPoint{Messages: 4}, []string{"--to-time", "2020-01-01T00:00:00Z"}, "the conversation of task short had no message yet at 2020-01-01"},
	} {
		r.answers[position] = test.answer
		for _, more := range [][]string{nil, {"--yes"}, {"--dry-run=server"}} {
			_, errOut, err := b.clew("yes\n", append(append([]string{"rewind", "short"}, test.args...), more...)...)
			wantError(t, err, test.err)
			if strings.Contains(errOut, "Rewind") {
				t.Errorf("%v: asked, or told what it would do:\n%s", test.args, errOut)
			}
		}
	}
	if b.get(task); task.Spec.Rewind != nil {
		t.Errorf("asked for %+v", task.Spec.Rewind)
	}
}

// The manager waits for what the task's pod sends again, and carries the rewind out.
func TestRewindToAPlaceThatTheHistoryStoreHasLostIsAskedFor(t *testing.T) {
	const position = "GET tasks/restored/conversation/position"
	b := newBench(t)
	task := b.task("restored", v1alpha1.ReasonRunning)
	r := b.withHistory(map[string]any{})
	for name, test := range map[string]struct {
		answer any
		behind bool // the manager has noticed
		args   []string
	}{
		"a message, of which the store has no task":        {nil, false, []string{"--to-message", "40"}},
		"so many back, of which the store has too few":     {nil, false, []string{"--back", "39"}},
		"a time, before which the store has nothing":       {historyv1.ConversationPoint{Messages: 0}, false, []string{"--to-time", "1h"}},
		"a message after those that the status counts":     {nil, true, []string{"--to-message", "99"}},
		"a time, where the store has as many as it should": {historyv1.ConversationPoint{Messages: 40}, true, []string{"--to-time", "1h"}},
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
			if !strings.HasSuffix(out, " requested\n") || !strings.Contains(errOut, "not known here (the history store lacks a part of this conversation); the cluster finds it out") {
				t.Errorf("printed %q after the preview\n%s", out, errOut)
			}
			if b.get(task); task.Spec.Rewind == nil {
				t.Fatal("asked for nothing")
			}
			task.Spec.Rewind = nil
			b.try(server.Client.Update(b.ctx, task))
		})
	}
}

func TestRewindTellsWhereItCameTo(t *testing.T) {
	operation := &v1alpha1.OperationStatus{ToPosition: 12, ToCheckpoint: 3, FromCheckpoint: 7, Preserved: "clew/before-x", Message: "moved back to the end of the turn"}
	want := "rewound to message 12 and checkpoint 3; what stood before is checkpoint 7 and branch clew/before-x (moved back to the end of the turn)"
	if got := rewound(operation, v1alpha1.PreserveBranch, &rewindTarget{}); got != want {
		t.Errorf("%q; want %q", got, want)
	}
}

func TestResumeWithLimits(t *testing.T) {
	b := newBench(t)
	task := b.task("again", v1alpha1.ReasonSuspended)
	b.must("resume", "again", "--wait=false", "--prompt", "Go on.", "--context-messages", "20", "--context-tool-calls", "0", "--context-summary", "exclude")
	b.get(task)
	limits, err := json.Marshal(task.Spec.Resume.Context)
	if want := `{"messages":20,"toolCalls":0,"summary":"Exclude"}`; err != nil || string(limits) != want {
		t.Errorf("asked for %s, %v; want %s", limits, err, want)
	}
	for _, test := range []struct{ flag, value, err string }{
		{"--context-messages", "-1", "from 0 to 10000"},
		{"--context-bytes", "10", "from 1000 to 1000000"},
		{"--context-summary", "maybe", "must be one of Include, Exclude"},
	} {
		_, _, err := b.clew("", "resume", "again", test.flag, test.value)
		wantError(t, err, test.err)
	}
}

func TestSnapshotCreateAndList(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonRunning)
	b.checkpoint(task, 1)
	playManager(b, &v1alpha1.ConversationSnapshotList{}, func(c *v1alpha1.ConversationSnapshot) bool {
		c.Status = v1alpha1.ConversationSnapshotStatus{
			Conversation: &v1alpha1.ConversationPosition{Position: 12}, MessageCount: 12, Digest: strings.Repeat("ab", 32), Trigger: v1alpha1.SnapshotManual,
			InputTokens: 1000, CostMicroUSD: 1500, Checkpoint: 1,
			Conditions: []metav1.Condition{
				{Type: v1alpha1.SnapshotReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonResolved, LastTransitionTime: metav1.NewTime(noon)},
				{Type: v1alpha1.SnapshotIntact, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonVerified, LastTransitionTime: metav1.NewTime(noon)},
			},
		}
		return true
	})
	out, _ := b.must("snapshot", "create", "worker", "--at", "13")
	if want := "conversationsnapshot.clew.dev/worker-abcdefgh created: message 12 of worker, digest abababababab…\n"; out != want {
		t.Errorf("printed %q; want %q", out, want)
	}
	out, _ = b.must("snapshot", "create", "worker", "--name", "other", "--checkpoint", "1", "--dry-run=server", "-o", "jsonpath={.spec.checkpointRef.name}")
	if out != "worker-1" {
		t.Errorf("printed %q", out)
	}
	out, _ = b.must("snapshot", "list", "worker", "--no-headers")
	if want := "worker-abcdefgh 12 Manual yes 1k $0.0015 1"; !strings.HasPrefix(squeezed(out), want) {
		t.Errorf("printed %q; want %q", out, want)
	}
	out, _ = b.must("snapshot", "list", "-o", "name")
	if out != "conversationsnapshot.clew.dev/worker-abcdefgh\n" {
		t.Errorf("printed %q", out)
	}
	_, _, err := b.clew("", "snapshot", "create", "worker", "--at", "1", "--checkpoint", "1")
	wantError(t, err, "leave one of them out")
	_, _, err = b.clew("", "snapshot", "create", "nobody")
	wantError(t, err, `there is no task "nobody"`)
	_, _, err = b.clew("", "snapshot", "list", "nobody")
	wantError(t, err, `there is no task "nobody"`)
}

func TestJudgeSnapshot(t *testing.T) {
	for _, test := range []struct {
		reason string
		err    string
	}{
		{v1alpha1.ReasonHistoryUnavailable, ""},
		{v1alpha1.ReasonCheckpointNotReady, ""},
		{v1alpha1.ReasonPositionNotFound, "was not noted: what happened (PositionNotFound)"},
		{v1alpha1.ReasonCorrupted, "(Corrupted)"},
	} {
		c := &v1alpha1.ConversationSnapshot{}
		if v := judgeSnapshot(c); v.done || v.err != nil {
			t.Errorf("new: %+v", v)
		}
		c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.SnapshotReady, Status: metav1.ConditionFalse, Reason: test.reason, Message: "what happened"}}
		wantError(t, judgeSnapshot(c).err, test.err)
	}
}

func TestHistoryTellsSumsAndMemory(t *testing.T) {
	b := newBench(t)
	task := b.task("talker", v1alpha1.ReasonRunning)
	task.Status.Attempts = []v1alpha1.Attempt{{Number: 1, Memory: v1alpha1.AgentMemorySession}}
	apimeta.SetStatusCondition(&task.Status.Conditions, metav1.Condition{
		Type: v1alpha1.TaskHistoryComplete, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonHistoryLimitReached, Message: "output was left out"})
	b.try(server.Client.Status().Update(b.ctx, task))
	r := b.withHistory(map[string]any{
		"GET taskhistories/talker":      taskHistoryOf("talker", string(task.UID)),
		"GET tasks/talker/conversation": historyv1.ConversationList{Items: []historyv1.ConversationEntry{entry(12, "user", "Go on.")}},
	})
	out, errOut := b.must("task", "history", "talker", "--from", "12", "--full")
	if !strings.HasPrefix(out, "── attempt 1: the agent goes on in its own session ──\n") {
		t.Errorf("printed %q", out)
	}
	if want := "40 messages, 12 tool calls, 10k tokens in and 2.3k out, $0.0123, by claude-x; tools: Bash, Edit\nThe history is not complete: output was left out.\n"; errOut != want {
		t.Errorf("said %q; want %q", errOut, want)
	}
	found := false
	for _, asked := range r.asked {
		found = found || asked == "GET tasks/talker/conversation?after=11&full=true&limit=500"
	}
	if !found {
		t.Errorf("asked %q", r.asked)
	}
	_, _, err := b.clew("", "task", "history", "talker", "--from", "2", "--tail", "1")
	wantError(t, err, "--from")
}

func TestCompletionOfHistories(t *testing.T) {
	b := newBench(t)
	b.withHistory(map[string]any{"GET taskhistories": historyv1.TaskHistoryList{Items: []historyv1.TaskHistory{taskHistoryOf("gone", "u1"), taskHistoryOf("gone", "u0")}}})
	for _, args := range [][]string{
		{"task", "history", ""}, {"task", "export", "go"}, {"task", "delete-history", ""}, {"search", "x", "--task", ""}, {"task", "list", "--name", ""},
	} {
		out, _, err := b.clew("", append([]string{"__complete"}, args...)...)
		if err != nil || strings.Count(out, "gone\tCompleted, 40 messages: Fix the login.") != 1 {
			t.Errorf("%v: %v, %q", args, err, out)
		}
	}
	for want, args := range map[string][]string{
		"Failed":       {"task", "list", "--state", ""},
		"tokens":       {"task", "list", "--sort", ""},
		"assistant":    {"search", "--role", ""},
		"Conversation": {"rewind", "x", "--scope", ""},
		"Exclude":      {"resume", "x", "--context-summary", ""},
	} {
		if out, _, err := b.clew("", append([]string{"__complete"}, args...)...); err != nil || !strings.Contains(out, want) {
			t.Errorf("%v: %v, %q lacks %q", args, err, out, want)
		}
	}
}

// Every command says what it does, with examples.
func TestHelpHasExamples(t *testing.T) {
	b := newBench(t)
	for _, args := range [][]string{
		{"search"}, {"task", "list"}, {"task", "export"}, {"task", "import"}, {"task", "delete-history"}, {"task", "history"},
		{"rewind"}, {"resume"}, {"snapshot", "create"}, {"snapshot", "list"}, {"fork"}, {"timeline"}, {"checkpoint", "create"}, {"checkpoint", "list"}, {"checkpoint", "show"},
	} {
		out, _ := b.must(append(args, "--help")...)
		if !strings.Contains(out, "Examples:") || !strings.Contains(out, "kubectl clew "+strings.Join(args, " ")) {
			t.Errorf("%v: %s", args, out)
		}
	}
}

func TestSlowThingsAreTold(t *testing.T) {
	b := newBench(t)
	answer := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-answer
		_ = json.NewEncoder(w).Encode(historyv1.TaskHistoryList{})
	}))
	defer slow.Close()
	b.kubeconfig = b.write(clientcmdapi.Cluster{Server: slow.URL}, clientcmdapi.AuthInfo{})
	time.AfterFunc(2500*time.Millisecond, func() { close(answer) })
	if _, errOut := b.must("task", "list"); !strings.HasPrefix(errOut, "waiting for the history\n") {
		t.Errorf("said %q", errOut)
	}
}
