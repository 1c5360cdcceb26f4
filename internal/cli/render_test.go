package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// noon is the current time in these tests.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func testPlugin() (*plugin, *bytes.Buffer) {
	out := &bytes.Buffer{}
	return &plugin{
		IOStreams: genericiooptions.IOStreams{Out: out, ErrOut: &bytes.Buffer{}},
		clock:     func() time.Time { return noon }, location: time.UTC,
	}, out
}

func entry(position int64, role, text string) historyv1.ConversationEntry {
	return historyv1.ConversationEntry{
		Position: position, Role: role, Text: text, Attempt: 1,
		Time: metav1.NewMicroTime(noon.Add(time.Duration(position) * time.Second)),
	}
}

func call(position int64, id, name, input string) historyv1.ConversationEntry {
	e := entry(position, "assistant", "")
	e.ToolCall = &historyv1.ToolCall{ID: id, Name: name, Input: input}
	return e
}

func answer(position int64, id, output string, change func(*historyv1.ToolResult)) historyv1.ConversationEntry {
	e := entry(position, "tool", "")
	e.ToolResult = &historyv1.ToolResult{CallID: id, Output: output}
	if change != nil {
		change(e.ToolResult)
	}
	return e
}

func inAttempt(n int64, e historyv1.ConversationEntry) historyv1.ConversationEntry {
	e.Attempt = n
	return e
}

func TestChat(t *testing.T) {
	for _, test := range []struct {
		name    string
		full    bool
		entries []historyv1.ConversationEntry
		want    string
	}{
		{
			name: "a turn with a tool",
			entries: []historyv1.ConversationEntry{
				entry(1, "user", "Fix the login."),
				call(2, "c1", "bash", `{"command": "go test ./...", "timeout": 60}`),
				answer(3, "c1", "ok  login\nok  store\n", nil),
				entry(4, "assistant", "All tests pass.\nDone."),
			},
			want: `── attempt 1 ──

   1  user  2026-11-21 12:00:01
      Fix the login.

   2  assistant → bash  2026-11-21 12:00:02
      command: go test ./...
      timeout: 60

   3  bash ← ok  2026-11-21 12:00:03
      ok  login
      ok  store

   4  assistant  2026-11-21 12:00:04
      All tests pass.
      Done.

`,
		},
		{
			name: "errors, interruptions and unknown calls",
			entries: []historyv1.ConversationEntry{
				answer(1, "c0", "no such file", func(r *historyv1.ToolResult) { r.IsError = true }),
				call(2, "c2", "edit", `{"path": "a.go", "text": "one\ntwo\n"}`),
				answer(3, "c2", "", func(r *historyv1.ToolResult) { r.Interrupted = true }),
				call(4, "c3", "list", `["a", "b"]`),
			},
			want: `── attempt 1 ──

   1  tool ← error  2026-11-21 12:00:01
      no such file

   2  assistant → edit  2026-11-21 12:00:02
      path: a.go
      text:
        one
        two

   3  edit ← interrupted  2026-11-21 12:00:03

   4  assistant → list  2026-11-21 12:00:04
      ["a", "b"]

`,
		},
		{
			name: "consecutive output has one header, and a new attempt is announced",
			entries: []historyv1.ConversationEntry{
				entry(1, "output", "compiling"),
				entry(2, "output", "linking"),
				entry(3, "assistant", "Built."),
				inAttempt(2, historyv1.ConversationEntry{Position: 4, Role: "output", Raw: `{"odd": true}`, Time: metav1.NewMicroTime(noon)}),
			},
			want: `── attempt 1 ──

   1  output  2026-11-21 12:00:01
      compiling
      linking

   3  assistant  2026-11-21 12:00:03
      Built.

── attempt 2 ──

   4  output  2026-11-21 12:00:00
      {"odd": true}
`,
		},
		{
			name: "text written by an agent cannot control the terminal",
			entries: []historyv1.ConversationEntry{
				entry(1, "assistant", "red \x1b[31m alarm\a, \u202eback\r\nnext"),
			},
			want: `── attempt 1 ──

   1  assistant  2026-11-21 12:00:01
      red \x1b[31m alarm\x07, \u202eback
      next

`,
		},
		{
			name:    "long messages are shortened",
			entries: []historyv1.ConversationEntry{answer(1, "", strings.Repeat("line\n", 40)+strings.Repeat("x", 500), nil)},
			want: `── attempt 1 ──

   1  tool ← ok  2026-11-21 12:00:01
` + strings.Repeat("      line\n", 15) + `      … 26 more lines; --full prints all

`,
		},
		{
			name: "long messages are printed in full with --full", full: true,
			entries: []historyv1.ConversationEntry{answer(1, "", strings.Repeat("line\n", 20), nil)},
			want: `── attempt 1 ──

   1  tool ← ok  2026-11-21 12:00:01
` + strings.Repeat("      line\n", 20) + "\n",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := &bytes.Buffer{}
			chat := newChat(out, time.UTC, test.full)
			for _, e := range test.entries {
				if err := chat.print(e); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(test.want, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

func TestChatColours(t *testing.T) {
	out := &bytes.Buffer{}
	chat := newChat(out, time.UTC, false)
	chat.style = style{on: true}
	if err := chat.print(answer(1, "c", "no", func(r *historyv1.ToolResult) { r.IsError = true })); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "\x1b[31mtool ← error\x1b[0m") {
		t.Errorf("an error is not red: %q", out)
	}
}

func takenCheckpoint(number int64, name string) v1alpha1.Checkpoint {
	at := metav1.NewTime(noon.Add(-time.Duration(10-number) * time.Minute))
	return v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team", CreationTimestamp: at},
		Spec:       v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "fix-login"}},
		Status: v1alpha1.CheckpointStatus{
			Number: number, Attempt: 1, Trigger: v1alpha1.TriggerToolCalls, Time: &at, TaskUID: "uid-1",
			Commit: "c0ffee", Tree: "7ree", Files: 1200, Bytes: 3 << 20,
			Code:         &v1alpha1.CodeStats{FilesChanged: 3, LinesAdded: 20, LinesRemoved: 4},
			Conversation: &v1alpha1.CheckpointConversation{ConversationPosition: v1alpha1.ConversationPosition{Branch: "main", Position: 10 * number, ToolCalls: 4}},
			Conditions: []metav1.Condition{
				{Type: v1alpha1.CheckpointReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonTaken},
				{Type: v1alpha1.CheckpointDurable, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPushed},
			},
		},
	}
}

func TestCheckpointTable(t *testing.T) {
	first, second := takenCheckpoint(1, "fix-login-1"), takenCheckpoint(2, "before-migration")
	second.Spec.Message = "Before the\nmigration"
	second.Status.Trigger = v1alpha1.TriggerManual
	second.Status.Conditions[1] = metav1.Condition{Type: v1alpha1.CheckpointDurable, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotPushed}
	asked := v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Name: "asked", CreationTimestamp: metav1.NewTime(noon.Add(-time.Second))},
		Spec:       v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "fix-login"}},
	}
	p, out := testPlugin()
	if err := p.checkpointTable(out, []v1alpha1.Checkpoint{first, second, asked}, false, false); err != nil {
		t.Fatal(err)
	}
	want := `NUMBER   NAME               TRIGGER     DURABLE     FILES   LINES    MESSAGES   AGE   MESSAGE
1        fix-login-1        ToolCalls   yes         3       +20 -4   10         9m    
2        before-migration   Manual      NotPushed   3       +20 -4   20         8m    Before the migration
-        asked              -           -           -       -        -          1s    
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

func TestDescribeCheckpoint(t *testing.T) {
	c := takenCheckpoint(3, "fix-login-3")
	c.Status.Git = &v1alpha1.GitPosition{Head: "beef", Branch: "main", DirtyFileCount: 2}
	c.Status.ChangedFiles = []v1alpha1.ChangedFile{{Path: "a\nb.go", Action: v1alpha1.FileModified}, {Path: "c", Action: v1alpha1.FileDeleted}}
	c.Status.SkippedCount = 101
	c.Status.Skipped = []v1alpha1.SkippedFile{{Path: "data/\x1b]big\n.bin", Reason: "TooLarge", Bytes: 200 << 20}}
	p, out := testPlugin()
	if err := p.describeCheckpoint(out, &c, false); err != nil {
		t.Fatal(err)
	}
	want := `Name:           fix-login-3
Task:           fix-login
Number:         3
Taken:          2026-11-21 11:53:00 (7m ago), ToolCalls, attempt 1
Ready:          True (Taken)
Durable:        True (Pushed)
Commit:         c0ffee
Tree:           7ree
Contents:       1200 files, 3.0 MiB
Changed:        3 files, 20 lines added, 4 lines removed
Conversation:   30 messages, 4 tool calls with results
Agent's git:    branch main at beef, 2 dirty files
Changed files:
  modified  a b.go
  deleted   c
  and 1 more
Not included (a rewind leaves these files unchanged):
  data/\x1b]big\n.bin  TooLarge (200.0 MiB)
  and 100 more
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

func TestTimelineTable(t *testing.T) {
	events := []historyv1.TimelineEvent{
		{Time: metav1.NewMicroTime(noon), Task: "fix-login", Type: "task", Reason: "TaskStarted", Actor: "clew", Attempt: 1, Message: "attempt 1 started"},
		{Time: metav1.NewMicroTime(noon.Add(time.Minute)), Task: "fix-login", Type: "checkpoint", Reason: "CheckpointCreated", Attempt: 1, Checkpoint: 1, Message: "first\nsecond"},
	}
	for _, test := range []struct {
		name     string
		withTask bool
		want     string
	}{
		{"of a task", false, `TIME                  TYPE         REASON              ATTEMPT   CHECKPOINT   BY     MESSAGE
2026-11-21 12:00:00   task         TaskStarted         1         -            clew   attempt 1 started
2026-11-21 12:01:00   checkpoint   CheckpointCreated   1         1            -      first second
`},
		{"of a namespace", true, `TIME                  TASK        TYPE         REASON              ATTEMPT   CHECKPOINT   BY     MESSAGE
2026-11-21 12:00:00   fix-login   task         TaskStarted         1         -            clew   attempt 1 started
2026-11-21 12:01:00   fix-login   checkpoint   CheckpointCreated   1         1            -      first second
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, out := testPlugin()
			if err := (&timeline{plugin: p}).table(events, test.withTask); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseMoment(t *testing.T) {
	p, _ := testPlugin()
	p.location = time.FixedZone("east", 3600)
	for text, want := range map[string]time.Time{
		"90m":                  noon.Add(-90 * time.Minute),
		"2d":                   noon.AddDate(0, 0, -2),
		"2026-11-20T08:00:00Z": time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC),
		"2026-11-20 08:00:01":  time.Date(2026, 11, 20, 7, 0, 1, 0, time.UTC), // without a zone: the user's, as times are printed
		"2026-11-20 08:00":     time.Date(2026, 11, 20, 7, 0, 0, 0, time.UTC),
		"2026-11-20":           time.Date(2026, 11, 19, 23, 0, 0, 0, time.UTC),
	} {
		got, err := p.parseMoment("--since", text)
		if err != nil || !got.Equal(want) {
			t.Errorf("parseMoment(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"yesterday", "-5m", "-1d", "999999999999d", ""} {
		if got, err := p.parseMoment("--since", text); err == nil {
			t.Errorf("parseMoment(%q) = %v; want an error", text, got)
		}
	}
}

func TestCountAndDollars(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1k", 12_345: "12.3k", 999_949: "999.9k", 999_950: "1M", 4_510_000: "4.5M"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %q; want %q", n, got, want)
		}
	}
	for micro, want := range map[int64]string{0: "-", 7: "$0.00001", 1500: "$0.0015", 12_300: "$0.0123", 120_000: "$0.12", -450: "-$0.00045", 12_345_678: "$12.35"} {
		if got := dollars(micro); got != want {
			t.Errorf("dollars(%d) = %q; want %q", micro, got, want)
		}
	}
	for text, want := range map[string]int64{"1500": 1500, "20k": 20_000, "1.5M": 1_500_000, "0": 0} {
		if got, err := parseCount("--min-tokens", text); err != nil || got != want {
			t.Errorf("parseCount(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "many", "-1", "NaN", "1e30", "k"} {
		if got, err := parseCount("--min-tokens", text); err == nil {
			t.Errorf("parseCount(%q) = %d; want an error", text, got)
		}
	}
}

func TestSnippet(t *testing.T) {
	parts := []historyv1.SnippetPart{{Text: "… run\n  the "}, {Text: "go", Match: true}, {Text: " "}, {Text: "tests", Match: true}, {Text: ", \x1b[31mor not"}}
	for _, test := range []struct {
		name  string
		style style
		room  int
		want  string
	}{
		{"plain", style{}, 0, `… run the go tests, \x1b[31mor not`},
		{"on a terminal", style{on: true}, 0, "… run the \x1b[1m\x1b[33mgo\x1b[0m\x1b[0m \x1b[1m\x1b[33mtests\x1b[0m\x1b[0m" + `, \x1b[31mor not`},
		{"narrow", style{}, 12, "… run the go"},
		{"shortened within a part", style{}, 16, "… run the go te…"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := snippet(test.style, parts, test.room); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestChatMarksShortenedTextsAndTheAgentsMemory(t *testing.T) {
	long := entry(1, "user", "The beginning")
	long.TextBytes = 2 << 20
	for full, want := range map[bool]string{
		false: "… the beginning of 2.0 MiB; --full prints more",
		true:  "… the beginning of 2.0 MiB; `kubectl clew task export` writes all of it",
	} {
		var out bytes.Buffer
		chat := newChat(&out, time.UTC, full)
		chat.memory = map[int64]string{1: memoryText(v1alpha1.Attempt{Number: 1, Memory: v1alpha1.AgentMemoryRendered, MemoryMessage: "the session is of another version"})}
		if err := chat.print(long); err != nil {
			t.Fatal(err)
		}
		text := "── attempt 1: the agent got the conversation in its prompt: the session is of another version ──\n\n" +
			"   1  user  2026-11-21 12:00:01\n      The beginning\n      " + want + "\n\n"
		if diff := cmp.Diff(text, out.String()); diff != "" {
			t.Errorf("full %v: -want +got\n%s", full, diff)
		}
	}
	if words := memoryText(v1alpha1.Attempt{Memory: v1alpha1.AgentMemoryNew}); words != "" {
		t.Errorf("memory of a new agent: got %q, want none", words)
	}
}

func TestHumanBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 200 << 20: "200.0 MiB", 5 << 40: "5.0 TiB"} {
		if got := humanBytes(n); got != want {
			t.Errorf("humanBytes(%d) = %q; want %q", n, got, want)
		}
	}
}

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"tab\tand\nline":      "tab\tand\nline",
		"bad \xff byte":       `bad \xff byte`,
		"bell\a":              `bell\x07`,
		"a\u009bb":            `a\u009bb`,
		"family 👨\u200d👩":     "family 👨\u200d👩",
		"zero\u200bwidth":     `zero\u200bwidth`,
		"a real \uFFFD stays": "a real \uFFFD stays",
	} {
		if got := plain(in); got != want {
			t.Errorf("plain(%q) = %q; want %q", in, got, want)
		}
	}
}

func TestRunes(t *testing.T) {
	for _, test := range []struct {
		text string
		n    int
		want string
	}{{"short", 10, "short"}, {"äöü", 3, "äöü"}, {"äöüß", 3, "äö…"}, {"any", 0, "any"}} {
		if got := clip.Runes(test.text, test.n); got != test.want {
			t.Errorf("clip.Runes(%q, %d) = %q; want %q", test.text, test.n, got, test.want)
		}
	}
}

// Setting the same number again changes nothing, so it must be removed first.
func TestCompletenessNamesTheCommandThatAcknowledgesALoss(t *testing.T) {
	const lost = "The history is incomplete: 29 records of this task are permanently lost.\nTo acknowledge the loss:\n"
	const patch = "  kubectl patch tasks.clew.dev lossy -n team --type merge -p '{\"spec\":{\"acknowledge\":"
	for _, test := range []struct {
		name, reason string
		complete     metav1.ConditionStatus
		ended        int64
		want         string
	}{
		{"a loss", v1alpha1.ReasonHistoryGap, metav1.ConditionFalse, 0, lost + patch + "{\"lostRecords\":29}}}'"},
		{"a loss of the same number as before", v1alpha1.ReasonHistoryGap, metav1.ConditionFalse, 29,
			lost + patch + "null}}'\n" + patch + "{\"lostRecords\":29}}}'"},
		{"a loss of more than before", v1alpha1.ReasonHistoryGap, metav1.ConditionFalse, 20, lost + patch + "{\"lostRecords\":29}}}'"},
		{"an acknowledged loss", v1alpha1.ReasonLossAcknowledged, metav1.ConditionTrue, 0,
			"The history is complete except for acknowledged losses: 29 records of this task are permanently lost."},
		{"a loss of unknown size", v1alpha1.ReasonUncountedHistoryGap, metav1.ConditionFalse, 0,
			"The history is incomplete: 29 records of this task are permanently lost."},
	} {
		t.Run(test.name, func(t *testing.T) {
			task := &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "lossy"}}
			task.Status.LostRecords, task.Status.EndedAcknowledgement = 29, test.ended
			task.Status.Conditions = []metav1.Condition{{Type: v1alpha1.TaskHistoryComplete, Status: test.complete, Reason: test.reason,
				Message: "29 records of this task are permanently lost"}}
			if got := completeness(task); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
	if got := completeness(&v1alpha1.Task{}); got != "" {
		t.Errorf("completeness of a complete history: got %q, want none", got)
	}
}

func TestTheInputOfAToolIsReadable(t *testing.T) {
	entry := &historyv1.ConversationEntry{ToolCall: &historyv1.ToolCall{Name: "shell", Input: `{"c":"a \u003e b \u0026\u0026 \\u003c"}`}}
	wantText(t, "text", `calls shell {"c":"a > b && \\u003c"}`, entryText(entry))
}
