package postgres_test

import (
	"errors"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/history"
)

func event(task history.Task, n int64, at time.Time) history.Event {
	return history.Event{
		ID: history.EventID(task.UID, n), Task: task, Time: at.Truncate(time.Microsecond),
		Type: history.EventTypeTask, Reason: "TaskStarted", Actor: "clew", Message: fmt.Sprint(n), Attempt: 1,
	}
}

var _ = Describe("The timeline", func() {
	It("events are recorded once", func() {
		t := GinkgoTB()
		store := open(t)
		task := taskNamed("a")
		want := []history.Event{event(task, 2, time.Now()), event(task, 1, time.Now().Add(-time.Second))}
		for range 3 {
			if err := store.RecordEvents(t.Context(), want); err != nil {
				t.Fatal(err)
			}
		}
		page, err := store.Timeline(t.Context(), history.TimelineQuery{Namespace: "team", Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(history.EventPage{Events: want}, page); d != "" {
			t.Errorf("timeline (-want +got):\n%s", d)
		}
		if err := store.RecordEvents(t.Context(), []history.Event{{Task: task}}); err == nil {
			t.Error("an event without an id was accepted")
		}
		if err := store.RecordEvents(t.Context(), nil); err != nil {
			t.Error(err)
		}
	})

	It("the timeline merges and filters", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		start := time.Now().Add(-time.Hour)
		if err := store.RecordEvents(t.Context(), []history.Event{event(w.task, 1, start)}); err != nil {
			t.Fatal(err)
		}
		w.append(user("do  it\nnow"), call("x"), result("x"), agent("done"), checkpoint(1),
			history.Record{Event: &history.DaemonEvent{Reason: "DriftDetected", Message: "2 files", Details: map[string]string{"type": "file"}}})
		created := event(w.task, 2, time.Now())
		created.Type, created.Reason, created.Checkpoint = history.EventTypeCheckpoint, "CheckpointCreated", 1
		if err := store.RecordEvents(t.Context(), []history.Event{created}); err != nil {
			t.Fatal(err)
		}
		w.move("op", 1)

		read := func(query history.TimelineQuery) []string {
			t.Helper()
			query.Namespace, query.Limit = "team", 100
			page, err := store.Timeline(t.Context(), query)
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, e := range page.Events {
				lines = append(lines, e.Type+" "+e.Reason+" "+e.Message)
			}
			return lines
		}
		all := []string{
			"rewind ConversationMoved the conversation continues from message 4, on branch-2 (Rewind)",
			"file DriftDetected 2 files",
			"checkpoint CheckpointCreated checkpoint 1 (ToolCalls): 2 files changed, +3 -4 lines",
			"chat AgentMessage done",
			"chat UserMessage do it now",
			"task TaskStarted 1",
		}
		sorted := func(a []string) map[string]bool {
			set := map[string]bool{}
			for _, s := range a {
				set[s] = true
			}
			return set
		}
		// Times within a batch may be equal to the microsecond, so sets are compared.
		if d := cmp.Diff(sorted(all), sorted(read(history.TimelineQuery{}))); d != "" {
			t.Errorf("namespace (-want +got):\n%s", d)
		}
		if d := cmp.Diff(sorted(all), sorted(read(history.TimelineQuery{Name: "a"}))); d != "" {
			t.Errorf("task (-want +got):\n%s", d)
		}
		if d := cmp.Diff(sorted(all[3:5]), sorted(read(history.TimelineQuery{Name: "a", Types: []string{"chat"}}))); d != "" {
			t.Errorf("chat (-want +got):\n%s", d)
		}
		if d := cmp.Diff(sorted(all[:5]), sorted(read(history.TimelineQuery{Since: start.Add(time.Minute)}))); d != "" {
			t.Errorf("since (-want +got):\n%s", d)
		}
		if _, err := store.Timeline(t.Context(), history.TimelineQuery{Namespace: "team", Name: "unknown", Limit: 1}); !errors.Is(err, history.ErrNotFound) {
			t.Errorf("unknown task: %v", err)
		}
		if page, err := store.Timeline(t.Context(), history.TimelineQuery{Namespace: "elsewhere", UID: w.task.UID, Limit: 1}); err != nil || len(page.Events) != 0 {
			t.Errorf("another namespace reads %v, %v", page.Events, err)
		}
	})

	// Consecutive pages neither lose nor repeat events while others are added at the top,
	// whether or not times are equal.
	It("pages of events follow each other", func() {
		t := GinkgoTB()
		store := open(t)
		task := taskNamed("a")
		start := time.Now().Add(-time.Hour)
		var events []history.Event
		for n := range int64(50) {
			events = append(events, event(task, n, start.Add(time.Duration(n/4)*time.Second)))
		}
		if err := store.RecordEvents(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		query := history.TimelineQuery{Namespace: "team", Name: "a", Limit: 7}
		for pages := 0; ; pages++ {
			page, err := store.Timeline(t.Context(), query)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page.Events {
				seen[e.ID]++
			}
			if err := store.RecordEvents(t.Context(), []history.Event{event(task, int64(1000+pages), time.Now())}); err != nil {
				t.Fatal(err)
			}
			if !page.More {
				break
			}
			last := page.Events[len(page.Events)-1]
			query.Before = history.EventKey{Time: last.Time, ID: last.ID}
		}
		if len(seen) != len(events) {
			t.Errorf("%d events were read, want %d", len(seen), len(events))
		}
		for _, e := range events {
			if seen[e.ID] != 1 {
				t.Errorf("event %s was read %d times", e.Message, seen[e.ID])
			}
		}
	})

	It("a conversation is read by the task's name", func() {
		t := GinkgoTB()
		store := open(t)
		old := begin(t, store, history.Task{Namespace: "team", Name: "a", UID: "first life"}, 1)
		old.append(user("old"))
		w := begin(t, store, taskNamed("a"), 1)
		for i := range 10 {
			w.append(user(fmt.Sprint(i)))
		}
		w.append(checkpoint(1), user("left"))
		w.move("op", 1)

		read := func(query history.ConversationQuery) ([]string, history.EntryPage) {
			t.Helper()
			query.Namespace = "team"
			page, err := store.TaskConversation(t.Context(), query)
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, e := range page.Entries {
				lines = append(lines, e.Message.Text)
			}
			return lines, page
		}
		lines, page := read(history.ConversationQuery{Name: "a", After: 2, Limit: 3})
		if d := cmp.Diff([]string{"2", "3", "4"}, lines); d != "" {
			t.Errorf("page of the active branch (-want +got):\n%s", d)
		}
		if page.Remaining != 5 || page.Branch != "branch-2" {
			t.Errorf("%d messages remain on %s, want 5 on branch-2", page.Remaining, page.Branch)
		}
		lines, page = read(history.ConversationQuery{Name: "a", Branch: "main", Last: 2, Limit: 5})
		if d := cmp.Diff([]string{"9", "left"}, lines); d != "" {
			t.Errorf("tail of main (-want +got):\n%s", d)
		}
		if page.Remaining != 0 || page.Branch != "main" {
			t.Errorf("%d messages remain on %s, want 0 on main", page.Remaining, page.Branch)
		}
		lines, _ = read(history.ConversationQuery{Name: "a", UID: "first life", Limit: 5})
		if d := cmp.Diff([]string{"old"}, lines); d != "" {
			t.Errorf("lines (-want +got):\n%s", d)
		}
		for _, query := range []history.ConversationQuery{
			{Namespace: "team", Name: "unknown"},
			{Namespace: "team", Name: "a", Branch: "branch-9"},
			{Namespace: "team", Name: "a", Branch: "x"},
			{Namespace: "elsewhere", Name: "a", UID: w.task.UID},
		} {
			if _, err := store.TaskConversation(t.Context(), query); !errors.Is(err, history.ErrNotFound) {
				t.Errorf("%+v: %v", query, err)
			}
		}
	})
})
