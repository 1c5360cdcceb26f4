package cli

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

func TestTheConversationSaysWhatEachCallDid(t *testing.T) {
	call := entry(4, "assistant", "")
	call.ToolCall = &historyv1.ToolCall{ID: "c", Name: "task_create", Input: `{"name":"parser"}`}
	call.Effects = []historyv1.Effect{{Operation: historyv1.EffectCreated, Name: "lead-\x1bparser", UID: "u", Phase: "Plan", Outcome: "Completed"}}
	var out bytes.Buffer
	if err := newChat(&out, time.UTC, false).print(call); err != nil {
		t.Fatal(err)
	}
	want := `── attempt 1 ──

   4  assistant → task_create  2026-11-21 12:00:04
      name: parser
      → made task lead-\x1bparser (phase Plan), now Completed

`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for want, effect := range map[string]historyv1.Effect{
		"→ made task a": {Operation: historyv1.EffectCreated, Name: "a"},
		"→ made task a by a fork from checkpoint 3, now Running":                  {Operation: historyv1.EffectForked, Name: "a", Checkpoint: 3, Outcome: "Running"},
		"→ resumed task a, now Running":                                           {Operation: historyv1.EffectResumed, Name: "a", Outcome: "Running"},
		"→ took task a back to checkpoint 2":                                      {Operation: historyv1.EffectRewound, Name: "a", Checkpoint: 2},
		"→ is task a already, now Running":                                        {Operation: historyv1.EffectRepeated, Name: "a", Phase: "Plan", Outcome: "Running"},
		"→ stopped task a, now Suspended":                                         {Operation: historyv1.EffectStopped, Name: "a", Outcome: "Suspended"},
		"→ moved the contract to phase Review":                                    {Operation: historyv1.EffectPhaseSet, Phase: "Review"},
		"→ published checkpoint 5 of task a":                                      {Operation: historyv1.EffectPublished, Name: "a", Checkpoint: 5},
		"→ task_merge a, now Running":                                             {Operation: "task_merge", Name: "a", Outcome: "Running"},
		"→ stopped task a (a rewind took this message back, and not what it did)": {Operation: historyv1.EffectStopped, Name: "a", TakenBack: true},
	} {
		wantText(t, "an effect", want, effectText(effect))
	}
}

func TestTheHistoryOfAChildSaysWhichMessageMadeIt(t *testing.T) {
	b := newBench(t)
	lead := b.member("lead", nil, v1alpha1.ReasonRunning)
	child := b.member("lead-parser", lead, v1alpha1.ReasonRunning)
	one := taskHistoryOf("lead-parser", string(child.UID))
	r := b.withHistory(map[string]any{
		"GET tasks/lead-parser/conversation": historyv1.ConversationList{Items: []historyv1.ConversationEntry{entry(1, "user", "parse")}},
		"GET taskhistories/lead-parser":      one,
	})
	_, errOut := b.must("task", "history", "lead-parser")
	wantParts(t, "standard error", errOut, "A child of task lead; none of its messages is known to have made it.\n")

	for _, test := range []struct {
		by   historyv1.MadeBy
		want string
	}{
		{historyv1.MadeBy{Name: "lead", Operation: historyv1.EffectCreated, Phase: "Plan", Branch: "main", Position: 12},
			"A child of task lead, made in phase Plan: `kubectl clew task history lead --from 12 --limit 1` prints the message.\n"},
		{historyv1.MadeBy{Name: "lead", Operation: historyv1.EffectForked, Branch: "branch-2", Position: 7, TakenBack: true},
			"A child of task lead, made by a fork, in a message that a rewind took back: `kubectl clew task history lead --from 7 --limit 1 --branch branch-2` prints the message.\n"},
	} {
		one.MadeBy = &test.by
		r.answers["GET taskhistories/lead-parser"] = one
		_, errOut = b.must("task", "history", "lead-parser")
		wantParts(t, "standard error", errOut, test.want)
	}
}
