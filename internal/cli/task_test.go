package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

func TestTaskList(t *testing.T) {
	b := newBench(t)
	page := historyv1.TaskHistoryList{Items: []historyv1.TaskHistory{taskHistoryOf("fix-login", "u2"), taskHistoryOf("old", "u1")}}
	page.Items[1].CostMicroUSD, page.Items[1].State = 0, ""
	r := b.withHistory(map[string]any{"GET taskhistories": page})
	out, _ := b.must("task", "list")
	want := `NAME        STATE       MESSAGES   TOKENS   COST      CHECKPOINTS   AGE    FIRST WORDS
fix-login   Completed   40         12.3k    $0.0123   4             3h     Fix the login. Then\x1b[2J stop.
old         Deleted     40         12.3k    -         4             3h     Fix the login. Then\x1b[2J stop.
`
	wantText(t, "list", squeezed(want), squeezed(out))
	wantText(t, "query", "limit=50&sort=created", r.query())
	running := b.task("runs", v1alpha1.ReasonRunning)
	page.Items[0].State, page.Items[1].State, page.Items[1].UID = "Running", "Running", running.UID
	r.answers["GET taskhistories"] = page
	out, _ = b.must("task", "list", "--no-headers")
	wantParts(t, "the states of one that has no object, and of one that has", squeezed(out), "fix-login Deleted", "old Running")
	b.must("task", "list", "--name", "fix", "--state", "Completed", "--tool", "Bash", "--min-tokens", "20k", "--min-cost", "$0.50", "--since", "30d", "--until", "2026-11-20", "--sort", "cost", "--limit", "3")
	wantText(t, "query with all filters", "limit=3&minCost=0.50&minTokens=20000&name=fix&since=2026-10-22T12%3A00%3A00Z&sort=cost&state=Completed&tool=Bash&until=2026-11-20T00%3A00%3A00Z", r.query())
	out, _ = b.must("task", "list", "-o", "wide", "--no-headers")
	wantParts(t, "wide list", out, "Bash,Edit", "u2")
	if strings.Contains(out, "NAME") {
		t.Errorf("the list has headers despite --no-headers:\n%s", out)
	}
	out, _ = b.must("task", "list", "-o", "name")
	wantText(t, "names", "taskhistory.history.clew.dev/fix-login\ntaskhistory.history.clew.dev/old\n", out)
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
	_, errOut := b.must("task", "list")
	wantText(t, "message about an empty list", "No tasks in the history of namespace "+b.namespace+" match these filters.\n", errOut)
}

// squeezed reduces all runs of spaces to one, so that column widths do not matter.
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
	out, errOut := b.must("task", "export", "fix-login")
	wantText(t, "export on standard output", exported, out)
	wantText(t, "standard error", "", errOut)
	folder := t.TempDir()
	file := filepath.Join(folder, "a.jsonl")
	out, _ = b.must("task", "export", "fix-login", "--uid", "u1", "-f", file)
	wantText(t, "output", fmt.Sprintf("history of task fix-login exported to %s: 2 messages and 1 checkpoint, %d B\n", file, len(exported)), out)
	content, err := os.ReadFile(file)
	b.try(err)
	wantText(t, "export in the file", exported, string(content))
	wantText(t, "query", "uid=u1", r.query())
	// An incomplete export leaves the existing file alone, and no temporary file.
	r.answers["GET taskhistories/fix-login/export"] = strings.Split(exported, `{"kind":"end"`)[0]
	_, _, err = b.clew("", "task", "export", "fix-login", "-f", file)
	wantError(t, err, "ended early, after 2 messages and 1 checkpoint")
	entries, err := os.ReadDir(folder)
	b.try(err)
	if len(entries) != 1 {
		t.Errorf("files after an incomplete export: %v; want only %s", entries, filepath.Base(file))
	}
	content, err = os.ReadFile(file)
	b.try(err)
	wantText(t, "the file after an incomplete export", exported, string(content))
	_, _, err = b.clew("", "task", "export", "unknown")
	wantError(t, err, "the history has nothing of this kind")
	_, _, err = b.clew("", "task", "export", "fix-login", "-f", filepath.Join(folder, "none", "a"))
	wantError(t, err, "cannot write the export")
}

func TestTaskImport(t *testing.T) {
	b := newBench(t)
	r := b.withHistory(map[string]any{"POST taskhistories": taskHistoryOf("fix-login", "u9")})
	file := filepath.Join(t.TempDir(), "a.jsonl")
	b.try(os.WriteFile(file, []byte(exported), 0o600))
	out, _ := b.must("task", "import", "-f", file)
	wantText(t, "output", "history of task fix-login imported: 40 messages and 4 checkpoints, UID u9\n", out)
	wantText(t, "body sent from a file", exported, r.bodies[0])
	_, _, err := b.clew(exported, "task", "import", "-f", "-")
	b.try(err)
	wantText(t, "body sent from standard input", exported, r.bodies[1])
	_, _, err = b.clew("", "task", "import")
	wantError(t, err, "-f FILE")
	_, _, err = b.clew("something else", "task", "import", "-f", "-")
	wantError(t, err, "is not an export written by")
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
	wantText(t, "output", "history of task fix-login deleted: the conversation, with 38 messages that no other task shares, 4 checkpoints, 20 events; 9 refs of code in the gitstore, freeing 5.0 MiB\n", out)
	wantParts(t, "the preview", errOut, "Permanent deletion of the history of task fix-login", "u2", "3h ago, last seen", "Completed",
		"the conversation of 40 messages, 4 checkpoints with their code", "the beginning of forks, and identical messages", "Delete it permanently? [y/N]")
	// Exactly the task of the preview is deleted.
	wantText(t, "query", "uid=u2", r.query())
	count := len(r.asked)
	_, _, err = b.clew("no\n", "task", "delete-history", "fix-login")
	wantError(t, err, "nothing was changed")
	_, _, err = b.clew("", "task", "delete-history", "fix-login")
	wantError(t, err, "add --yes")
	for _, asked := range r.asked[count:] {
		if strings.HasPrefix(asked, "DELETE") {
			t.Errorf("sent %s without a confirmation", asked)
		}
	}
	r.answers["DELETE "+path] = historyv1.HistoryDeletion{DryRun: true, Messages: 40, Checkpoints: 4}
	out, _ = b.must("task", "delete-history", "fix-login", "--dry-run=server")
	wantText(t, "output of a dry run", "history of task fix-login would be deleted: the conversation of 40 messages, and 4 checkpoints (server dry run)\n", out)
	wantText(t, "query of a dry run", "dryRun=All&uid=u2", r.query())
	count = len(r.asked)
	out, _ = b.must("task", "delete-history", "fix-login", "--dry-run=client")
	wantText(t, "output of a dry run", "history of task fix-login would be deleted: the conversation of 40 messages, and 4 checkpoints (dry run)\n", out)
	wantParts(t, "the only request", strings.Join(r.asked[count:], "\n"), "GET "+path)
	if len(r.asked) != count+1 {
		t.Errorf("a dry run of the client asked %q", r.asked[count:])
	}
	r.answers["DELETE "+path] = metav1.Status{Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Message: "the gitstore cannot be reached; delete it again, and it goes on where it stopped",
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: historyv1.CauseDeletionUnfinished}}}}
	_, _, err = b.clew("", "task", "delete-history", "fix-login", "--yes")
	wantError(t, err, "the gitstore cannot be reached; delete it again")
	r.answers["DELETE "+path] = metav1.Status{Code: 504, Reason: metav1.StatusReasonTimeout, Message: "timeout"}
	_, _, err = b.clew("", "task", "delete-history", "fix-login", "--yes")
	wantError(t, err, "it continues")
	_, _, err = b.clew("", "task", "delete-history", "unknown", "--yes")
	wantError(t, err, "the history has nothing of this kind")

	task := b.task("fix-login", v1alpha1.ReasonCompleted)
	r.answers["GET "+path] = taskHistoryOf("fix-login", string(task.UID))
	_, _, err = b.clew("", "task", "delete-history", "fix-login", "--yes")
	wantError(t, err, "kubectl delete tasks.clew.dev fix-login -n "+b.namespace)
}

func TestHistory(t *testing.T) {
	b := newBench(t)
	b.kubeconfig = b.write(clientcmdapi.Cluster{Server: fakeHistory(t, 5).URL}, clientcmdapi.AuthInfo{})
	out, errOut := b.must("task", "history", "talker")
	if n := strings.Count(out, "message "); n != 5 {
		t.Errorf("printed %d messages; want 5:\n%s", n, out)
	}
	wantParts(t, "the conversation", out, "   5  assistant  2026-11-21 12:00:05\n      message 5\n")
	wantText(t, "standard error", "", errOut)
	out, errOut = b.must("task", "history", "talker", "--limit", "3")
	if n := strings.Count(out, "message "); n != 3 {
		t.Errorf("printed %d messages with --limit 3:\n%s", n, out)
	}
	wantText(t, "footer", "2 more messages not printed; --limit 0 prints all.\n", errOut)
	out, _ = b.must("task", "history", "talker", "-o", "yaml")
	if !strings.HasPrefix(out, "apiVersion: history.clew.dev/v1alpha1\n") || strings.Count(out, "text: message") != 5 {
		t.Errorf("the YAML lacks its apiVersion or one of 5 messages:\n%s", out)
	}
	out, _ = b.must("task", "history", "talker", "--tail", "1")
	if strings.Count(out, "message ") != 1 || !strings.Contains(out, "message 5") {
		t.Errorf("printed with --tail 1; want only message 5:\n%s", out)
	}
	_, _, err := b.clew("", "task", "history", "talker", "--tail", "501")
	wantError(t, err, "it must be from 0 to 500")
	_, _, err = b.clew("", "task", "history", "silent")
	wantError(t, err, "Postgres is away")
	_, _, err = b.clew("", "task", "history", "nobody")
	wantError(t, err, "there is no history of that task")
}

// TestHistoryNamesToolsThatWereCalledBefore: the first message may be the result of a call that is
// not printed.
func TestHistoryNamesToolsThatWereCalledBefore(t *testing.T) {
	b := newBench(t)
	list := func(entries ...historyv1.ConversationEntry) historyv1.ConversationList {
		return historyv1.ConversationList{Items: entries}
	}
	r := b.withHistory(nil)
	r.answers = map[string]any{"GET tasks/talker/conversation": func(w http.ResponseWriter) {
		if strings.Contains(r.query(), "tail=2") {
			_ = json.NewEncoder(w).Encode(list(answer(71, "c", "done", nil), entry(72, "assistant", "It is done.")))
			return
		}
		_ = json.NewEncoder(w).Encode(list(call(69, "other", "Bash", "{}"), call(70, "c", "Write", "{}")))
	}}
	out, _ := b.must("task", "history", "talker", "--tail", "2", "--branch", "branch-2")
	wantParts(t, "the conversation", out, "  71  Write ← ok  ", "  72  assistant")
	if want := "GET tasks/talker/conversation?after=20&branch=branch-2&limit=50"; !slices.Contains(r.asked, want) {
		t.Errorf("requests %q lack %q", r.asked, want)
	}
	if strings.Contains(out, "69  ") {
		t.Errorf("earlier messages are printed:\n%s", out)
	}
}

func TestHistoryPrintsTotalsAndMemory(t *testing.T) {
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
	if !strings.HasPrefix(out, "── attempt 1: the agent resumed its own session ──\n") {
		t.Errorf("the conversation does not begin with the attempt and its memory:\n%s", out)
	}
	wantText(t, "footer", "40 messages, 12 tool calls, 10k tokens in and 2.3k out, $0.0123, by claude-x; tools: Bash, Edit\nThe history is incomplete: output was left out.\n", errOut)
	if want := "GET tasks/talker/conversation?after=11&full=true&limit=500"; !slices.Contains(r.asked, want) {
		t.Errorf("requests %q lack %q", r.asked, want)
	}
	_, _, err := b.clew("", "task", "history", "talker", "--from", "2", "--tail", "1")
	wantError(t, err, "--from")
}
