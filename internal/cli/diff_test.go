package cli

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
)

// someDiff is a difference of every kind of file.
func someDiff() historyv1.Diff {
	return historyv1.Diff{
		From: historyv1.DiffMoment{Task: "fix-login", TaskUID: "u", Checkpoint: 2, Branch: "main"}, To: historyv1.DiffMoment{Task: "fix-login", TaskUID: "u", Checkpoint: 4, Branch: "main"},
		Totals:       historyv1.DiffTotals{Files: 5, LinesAdded: 3, LinesRemoved: 2, BinaryFiles: 1},
		Conversation: &historyv1.ConversationDiff{FromPosition: 2, ToPosition: 4, SharedPosition: 2, Messages: 2, ToolCalls: 1, InputTokens: 1200, OutputTokens: 30, CostMicroUSD: 20_000},
		Items: []historyv1.FileDiff{
			{Path: "a.go", Action: "Modified", OldMode: "100644", NewMode: "100644", LinesAdded: 1, LinesRemoved: 1, Patch: "diff --git a/a.go b/a.go\n@@ -1 +1 @@\n-\x1b[31mold\n+new\n"},
			{Path: "b.png", Action: "Added", NewMode: "100644", NewBytes: 2048, Binary: true, PatchBytes: []byte("diff --git a/b.png b/b.png\n\xff\n")},
			{Path: "c", Action: "Deleted", OldMode: "100644", LinesRemoved: 1, Patch: "diff --git a/c b/c\n"},
			{Path: "e", OldPath: "d", Action: "Renamed", OldMode: "100644", NewMode: "100755", LinesAdded: 2, Patch: "diff --git a/d b/e\n"},
			{Path: "f", Action: "Modified", OldMode: "100644", NewMode: "120000", Patch: "diff --git a/f b/f\n"},
		},
	}
}

const diffRequest = "GET tasks/fix-login/diff"

func TestDiffAsPatch(t *testing.T) {
	b := newBench(t)
	r := b.withHistory(map[string]any{diffRequest: someDiff()})
	out, errOut := b.must("diff", "fix-login")
	wantText(t, "patch", "diff --git a/a.go b/a.go\n@@ -1 +1 @@\n-\x1b[31mold\n+new\ndiff --git a/b.png b/b.png\n\xff\ndiff --git a/c b/c\ndiff --git a/d b/e\ndiff --git a/f b/f\n", out)
	wantText(t, "standard error", "", errOut)
	wantText(t, "query", "format=patch&from=base&to=latest", r.query())
	b.must("diff", "fix-login", "previous", "other:4", "--uid", "u", "--", "src", "*.go")
	wantText(t, "query", "format=patch&from=previous&path=src&path=%2A.go&to=other%3A4&uid=u", r.query())
}

// TestADiffToLiveWaitsUntilTheFilesMayBeReadAgain: somebody else's request has just read them.
func TestADiffToLiveWaitsUntilTheFilesMayBeReadAgain(t *testing.T) {
	b := newBench(t)
	r := b.withHistory(nil)
	r.answers = map[string]any{diffRequest: func(w http.ResponseWriter) {
		if len(r.asked) > 1 {
			_ = json.NewEncoder(w).Encode(someDiff())
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable,
			Details: &metav1.StatusDetails{RetryAfterSeconds: 1, Causes: []metav1.StatusCause{{Type: historyv1.CauseLiveResting}}}})
	}}
	out, errOut := b.must("diff", "fix-login", "latest", "live", "--name-only")
	if !strings.HasPrefix(out, "a.go\n") {
		t.Errorf("the files are %q", out)
	}
	wantText(t, "standard error", "the files of task fix-login were read just now, which took long; trying again in 1 s\n", errOut)
}

// TestADiffSaysWhatStandsForThePresentOfAStoppedTask: nothing looks at its volume.
func TestADiffSaysWhatStandsForThePresentOfAStoppedTask(t *testing.T) {
	b := newBench(t)
	stopped := historyv1.Diff{From: historyv1.DiffMoment{Task: "fix-login", Type: historyv1.MomentCheckpoint, Checkpoint: 18},
		To: historyv1.DiffMoment{Task: "fix-login", Type: historyv1.MomentCheckpoint, Checkpoint: 19}}
	r := b.withHistory(map[string]any{diffRequest: stopped})
	const unseen = "; what was changed on its volume since then is not looked at\n"
	for _, form := range []string{"--stat", "--name-only", "--ignored"} {
		_, errOut := b.must("diff", "fix-login", "18", "live", form)
		wantText(t, "standard error of "+form, "task fix-login is not running: live is its latest checkpoint, 19"+unseen, errOut)
	}
	_, errOut := b.must("diff", "fix-login", "18", "19", "--stat")
	wantText(t, "standard error without live", "", errOut)
	stopped.To.Type = historyv1.MomentDrift
	r.answers[diffRequest] = stopped
	_, errOut = b.must("diff", "fix-login", "live", "-o", "json")
	wantText(t, "standard error with drift", "task fix-login is not running: live is what was found changed on its volume when a pod last started"+unseen, errOut)
	stopped.To.Type = historyv1.MomentLive
	r.answers[diffRequest] = stopped
	_, errOut = b.must("diff", "fix-login", "live", "--stat")
	wantText(t, "standard error of a running task", "", errOut)
}

func TestDiffNamesCheckpoints(t *testing.T) {
	b := newBench(t)
	r := b.withHistory(map[string]any{diffRequest: someDiff()})
	checkpoint := b.checkpoint(b.task("fix-login", "Running"), 3)
	b.must("diff", "fix-login", checkpoint.Name, "#4")
	wantText(t, "query", "format=patch&from=3&to=4", r.query())
	_, _, err := b.clew("", "diff", "fix-login", "nothing")
	wantError(t, err, `task fix-login has no checkpoint "nothing"`)
	_, _, err = b.clew("", "diff", "fix-login", "latest", "other:")
	wantError(t, err, `"other:" names no moment after the colon; name one, such as other:latest`)
	_, _, err = b.clew("", "diff", "fix-login", ":latest")
	wantError(t, err, `":latest" names no task before the colon; leave the colon out for the same task`)
}

func TestDiffAsSummary(t *testing.T) {
	b := newBench(t)
	r := b.withHistory(map[string]any{diffRequest: someDiff()})
	out, errOut := b.must("diff", "fix-login", "2", "4", "--stat")
	want := ` a.go                        +1 -1
 b.png (added)               binary, 0 B → 2.0 KiB
 c (deleted)                 +0 -1
 d → e (file → executable)   +2 -0
 f (file → symbolic link)    +0 -0
 5 files changed, +3 -2, 1 of them binary
`
	wantText(t, "summary", want, out)
	wantText(t, "standard error", "2 messages, 1 tool call, 1.2k tokens in and 30 out, $0.0200\n", errOut)
	more := someDiff()
	more.Totals.IgnoredFiles, more.Conversation = 2, nil
	r.answers[diffRequest] = more
	_, errOut = b.must("diff", "fix-login", "--stat")
	wantText(t, "standard error", "2 ignored files left out; --ignored includes them\n", errOut)
	_, errOut = b.must("diff", "fix-login", "--ignored")
	wantText(t, "standard error", "", errOut)
	wantText(t, "query", "format=patch&from=base&ignored=true&to=latest", r.query())
	out, _ = b.must("diff", "fix-login", "--name-only")
	wantText(t, "names", "a.go\nb.png\nc\ne\nf\n", out)
	out, _ = b.must("diff", "fix-login", "-o", "json")
	if list := decode[historyv1.Diff](t, out); len(list.Items) != 5 || list.Totals.Files != 5 {
		t.Errorf("the JSON has %d files of %d", len(list.Items), list.Totals.Files)
	}
}

func TestDiffReadsAllPages(t *testing.T) {
	b := newBench(t)
	first, second := someDiff(), someDiff()
	first.Continue, first.Items, second.Items = "next", first.Items[:2], second.Items[2:]
	r := b.withHistory(nil)
	r.answers = map[string]any{diffRequest: pagesOf{first, second}}
	out, _ := b.must("diff", "fix-login", "--name-only")
	wantText(t, "names", "a.go\nb.png\nc\ne\nf\n", out)
	wantText(t, "query", "continue=next&format=none&from=base&limit=1000&to=latest", r.query())
	out, _ = b.must("diff", "fix-login", "-o", "json")
	if list := decode[historyv1.Diff](t, out); len(list.Items) != 5 || list.Continue != "" {
		t.Errorf("the JSON has %d files, and continues at %q", len(list.Items), list.Continue)
	}
}

func TestDiffOfTheConversation(t *testing.T) {
	b := newBench(t)
	r := b.withHistory(map[string]any{diffRequest: someDiff(), "GET tasks/fix-login/conversation": historyv1.ConversationList{Items: []historyv1.ConversationEntry{
		{Position: 3, Time: metav1.NewMicroTime(noon), Role: "user", Text: "and then?"}, {Position: 4, Time: metav1.NewMicroTime(noon), Role: "assistant", Text: "done"},
	}}})
	out, errOut := b.must("diff", "fix-login", "2", "4", "--conversation")
	wantParts(t, "messages", out, "and then?", "done")
	wantText(t, "standard error", "2 messages, 1 tool call, 1.2k tokens in and 30 out, $0.0200\n", errOut)
	wantText(t, "query", "after=2&branch=main&limit=2&uid=u", r.query())
	two := someDiff()
	two.Conversation = nil
	r.answers[diffRequest] = two
	_, _, err := b.clew("", "diff", "fix-login", "2", "other:4", "--conversation")
	wantError(t, err, "it is not known where in a conversation one of the two moments is")
}

// TestDiffOfTwoBranchesOfTheConversation: after a rewind, each branch has messages of its own.
func TestDiffOfTwoBranchesOfTheConversation(t *testing.T) {
	b := newBench(t)
	two := someDiff()
	two.From.Branch, two.To.Branch = "main", "branch-2"
	two.Conversation = &historyv1.ConversationDiff{FromPosition: 6, ToPosition: 5, SharedPosition: 4, Messages: -1, ToolCalls: 1}
	r := b.withHistory(map[string]any{diffRequest: two, "GET tasks/fix-login/conversation": historyv1.ConversationList{Items: []historyv1.ConversationEntry{
		{Position: 6, Time: metav1.NewMicroTime(noon), Role: "assistant", Text: "said"},
	}}})
	out, errOut, err := b.clew("", "diff", "fix-login", "2", "4", "--conversation", "--exit-code")
	if !errors.Is(err, errDiffers) {
		t.Errorf("error %v, want that they differ", err)
	}
	wantParts(t, "messages", out, "--- in common: the first 4 messages ---\n", "--- only up to checkpoint 2, on main: 2 messages after message 4 ---\n", "said", "--- only up to checkpoint 4, on branch-2: 1 message after message 4 ---\n")
	const totals = "4 messages in common; 2 messages only up to checkpoint 2, on main; 1 message only up to checkpoint 4, on branch-2\n"
	wantText(t, "standard error", totals, errOut)
	wantText(t, "the last query", "after=4&branch=branch-2&limit=1&uid=u", r.query())
	_, errOut = b.must("diff", "fix-login", "2", "4", "--stat")
	wantText(t, "standard error of the summary", totals, errOut)
}

// TestDiffOfTheConversationsOfAForkAndItsSource: the fork's begins with that of its source.
func TestDiffOfTheConversationsOfAForkAndItsSource(t *testing.T) {
	b := newBench(t)
	two := someDiff()
	two.From = historyv1.DiffMoment{Task: "fix-login", TaskUID: "u", Type: historyv1.MomentCheckpoint, Checkpoint: 3, Branch: "main"}
	two.To = historyv1.DiffMoment{Task: "fork", TaskUID: "f", Type: historyv1.MomentLive, Branch: "main"}
	two.Conversation = &historyv1.ConversationDiff{FromPosition: 5, ToPosition: 6, SharedPosition: 4, Messages: 1}
	said := func(position int64, text string) historyv1.ConversationList {
		return historyv1.ConversationList{Items: []historyv1.ConversationEntry{{Position: position, Time: metav1.NewMicroTime(noon), Role: "assistant", Text: text}}}
	}
	r := b.withHistory(map[string]any{"GET tasks/fork/diff": two, "GET tasks/fix-login/conversation": said(5, "the source's"), "GET tasks/fork/conversation": said(6, "the fork's")})
	out, _ := b.must("diff", "fork", "fix-login:3", "live", "--conversation")
	wantParts(t, "messages", out, "--- in common: the first 4 messages ---\n--- only up to checkpoint 3 of task fix-login, on main: 1 message after message 4 ---\n",
		"the source's", "--- only up to now of task fork, on main: 2 messages after message 4 ---\n", "the fork's")
	wantText(t, "the last query", "after=4&branch=main&limit=2&uid=f", r.query())

	two.Conversation.SharedPosition = 0
	r.answers["GET tasks/fork/diff"] = two
	out, _ = b.must("diff", "fork", "fix-login:3", "live", "--conversation")
	wantParts(t, "messages of tasks that are not related", out, "--- in common: no message ---\n")

	two.From, two.Conversation.FromPosition = historyv1.DiffMoment{Task: "fix-login", TaskUID: "u", Type: historyv1.MomentBase}, 0
	r.answers["GET tasks/fork/diff"] = two
	out, _ = b.must("diff", "fork", "fix-login:base", "live", "--conversation")
	wantParts(t, "messages since the base of another task", out, "the fork's")
	wantText(t, "the last query", "after=0&branch=main&limit=6&uid=f", r.query())
}

func TestNoPatchLacksAFile(t *testing.T) {
	b := newBench(t)
	cut := someDiff()
	cut.Items[0].Patch, cut.Items[0].CutBytes = "", 5<<20
	b.withHistory(map[string]any{diffRequest: cut})
	out, _, err := b.clew("", "diff", "fix-login")
	wantError(t, err, "nothing is printed, since a patch would lack 1 file too large to compare: a.go")
	wantText(t, "patch", "", out)
}

func TestDiffExitCodes(t *testing.T) {
	b := newBench(t)
	r := b.withHistory(map[string]any{diffRequest: someDiff()})
	for _, args := range [][]string{{"--name-only"}, {"--stat"}, {}, {"-o", "json"}} {
		_, _, err := b.clew("", append([]string{"diff", "fix-login", "--exit-code"}, args...)...)
		if code, print := Exit(err); code != 1 || print {
			t.Errorf("differences with %q: exit code %d, printed: %t", args, code, print)
		}
	}
	r.answers[diffRequest] = historyv1.Diff{}
	if code, _ := exitOf(b.clew("", "diff", "fix-login", "--exit-code", "--stat")); code != 0 {
		t.Errorf("no differences: exit code %d", code)
	}
	_, errOut := b.must("diff", "fix-login", "--", "nosuch", "lib")
	wantText(t, "standard error", "no file that differs is selected by nosuch lib\n", errOut)
	r.answers[diffRequest] = nil
	if code, print := exitOf(b.clew("", "diff", "fix-login", "--exit-code")); code != 2 || !print {
		t.Errorf("an error: exit code %d, printed: %t", code, print)
	}
	if code, print := Exit(errors.New("other")); code != 1 || !print {
		t.Errorf("an error of another command: exit code %d, printed: %t", code, print)
	}
}

func exitOf(_, _ string, err error) (code int, print bool) { return Exit(err) }

func TestDiffOnATerminalCannotControlIt(t *testing.T) {
	got := paintPatch(someDiff().Items[0], style{on: true})
	wantText(t, "patch", "\x1b[1mdiff --git a/a.go b/a.go\x1b[0m\n\x1b[36m@@ -1 +1 @@\x1b[0m\n\x1b[31m-\\x1b[31mold\x1b[0m\n\x1b[32m+new\x1b[0m\n", got)
	cut := historyv1.FileDiff{Path: "a\nb", CutBytes: 2048}
	wantText(t, "a file that is too large", "a b: too large to compare (2.0 KiB)\n", paintPatch(cut, style{}))
}

func TestDiffArguments(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "missing argument TASK"},
		{[]string{"a", "b", "c", "d"}, `unexpected argument "d"; write -- before paths`},
		{[]string{"a", "--", "../x"}, "leaves the worktree"},
		{[]string{"a", "--stat", "--name-only"}, "use only one of --stat"},
		{[]string{"a", "--conversation", "-o", "json"}, "`kubectl clew task history -o json` has them"},
		{[]string{"a", "--frobnicate"}, "unknown flag"},
	} {
		_, _, err := b.clew("", append([]string{"diff", "--exit-code"}, c.args...)...)
		wantError(t, err, c.want)
		if code, print := Exit(err); code != 2 || !print {
			t.Errorf("%q: exit code %d, printed: %t", c.args, code, print)
		}
	}
}

func TestAPagerGetsTheTextUntilItIsLeft(t *testing.T) {
	var out, errOut strings.Builder
	p := startPager(&out, &errOut, "head -c 5", true)
	if !p.started() {
		t.Fatal("the pager is not started")
	}
	_, err := io.WriteString(p.to(nil), "hello")
	for err == nil { // the pipe takes some more text before it breaks
		_, err = io.WriteString(p.to(nil), strings.Repeat("x", 64<<10))
	}
	p.wait()
	if !errors.Is(err, errPagerLeft) {
		t.Errorf("writing to a pager that was left fails with %v", err)
	}
	wantText(t, "output", "hello", out.String())
	for _, none := range []string{"", " ", "cat", "there-is-no-such-pager"} {
		if startPager(&out, &errOut, none, true).started() {
			t.Errorf("PAGER=%q starts a pager", none)
		}
	}
	if _, err := io.WriteString((*pager)(nil).to(&errOut), "text"); err != nil {
		t.Error(err)
	}
	(*pager)(nil).wait()
	wantText(t, "output without a pager", "text", errOut.String())
}
