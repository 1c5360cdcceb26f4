package postgres_test

import (
	"errors"
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	taskplan "github.com/clew-dev/clew/internal/plan"
)

func transition(task history.Task, n int64, reason string, at time.Time) history.Event {
	e := event(task, n, at)
	e.Reason = reason
	// The words that users pass to `--state` are those of the manager.
	e.State = taskplan.StateAfter(&v1alpha1.TaskStatus{}, v1alpha1.HistoryEntry{Reason: reason})
	return e
}

var _ = Describe("Listing tasks", func() {
	It("tasks are filtered and sorted", func() {
		t := GinkgoTB()
		store := open(t)
		start := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
		record := func(events ...history.Event) {
			t.Helper()
			if err := store.RecordEvents(t.Context(), events); err != nil {
				t.Fatal(err)
			}
		}
		a := begin(t, store, taskNamed("login-a"), 1)
		record(transition(a.task, 1, "TaskStarted", start), transition(a.task, 2, "TaskCompleted", start.Add(time.Minute)))
		a.append(user("  Fix\nthe login page "), call("1"), result("1"),
			history.Record{Usage: &history.Usage{InputTokens: 100, OutputTokens: 20, CostMicroUSD: 7, CachedInputTokens: 90, Model: "sonnet"}}, checkpoint(1), user("more"))
		b := begin(t, store, taskNamed("login-b"), 1)
		record(transition(b.task, 1, "TaskStarted", start.Add(time.Second)), transition(b.task, 2, "OperationRefused", start.Add(time.Hour)))
		b.append(user("b"), usage(1000, 0, 3), history.Record{Message: &conversation.Message{
			Role: conversation.RoleAssistant, ToolCall: &conversation.ToolCall{ID: "1", Name: "Edit", Input: "{}"}}})
		// This one never had a pod.
		c := history.Task{Namespace: "team", Name: "other", UID: "never-began"}
		record(transition(c, 1, "TaskFailed", start.Add(2*time.Second)))
		record(transition(history.Task{Namespace: "elsewhere", Name: "x", UID: "x"}, 1, "TaskStarted", start))

		list := func(query history.TaskQuery) []string {
			t.Helper()
			query.Namespace, query.Limit = "team", 100
			page, err := store.Tasks(t.Context(), query)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, task := range page.Tasks {
				names = append(names, task.Name)
			}
			return names
		}
		tests := map[string]struct {
			query history.TaskQuery
			want  []string
		}{
			"by creation":   {history.TaskQuery{}, []string{"other", "login-b", "login-a"}},
			"by change":     {history.TaskQuery{Sort: history.SortUpdated}, []string{"login-b", "login-a", "other"}},
			"by cost":       {history.TaskQuery{Sort: history.SortCost}, []string{"login-a", "login-b", "other"}},
			"by tokens":     {history.TaskQuery{Sort: history.SortTokens}, []string{"login-b", "login-a", "other"}},
			"by messages":   {history.TaskQuery{Sort: history.SortMessages}, []string{"login-a", "login-b", "other"}},
			"by name":       {history.TaskQuery{Sort: history.SortName}, []string{"login-a", "login-b", "other"}},
			"prefix":        {history.TaskQuery{NamePrefix: "login-"}, []string{"login-b", "login-a"}},
			"prefix %":      {history.TaskQuery{NamePrefix: "%"}, nil},
			"state":         {history.TaskQuery{State: "Running"}, []string{"login-b"}},
			"another state": {history.TaskQuery{State: "Failed"}, []string{"other"}},
			"tool":          {history.TaskQuery{Tool: "Bash"}, []string{"login-a"}},
			"no such tool":  {history.TaskQuery{Tool: "bash"}, nil},
			"tokens":        {history.TaskQuery{MinTokens: 121}, []string{"login-b"}},
			"cost":          {history.TaskQuery{MinCostMicroUSD: 7}, []string{"login-a"}},
			"since":         {history.TaskQuery{Since: start.Add(time.Second)}, []string{"other", "login-b"}},
			"until":         {history.TaskQuery{Until: start.Add(2 * time.Second)}, []string{"login-b", "login-a"}},
		}
		for name, tt := range tests {
			By(name, func() {
				if d := cmp.Diff(tt.want, list(tt.query)); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
			})
		}
		page, err := store.Tasks(t.Context(), history.TaskQuery{Namespace: "team", NamePrefix: "login-a", Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		want := history.TaskSummary{
			Task: a.task, State: "Completed", Preview: "Fix the login page", Created: start, Checkpoints: 1, Tools: []string{"Bash"},
			Totals: history.Totals{Messages: 4, ToolCalls: 1, InputTokens: 100, OutputTokens: 20, CostMicroUSD: 7},
			Models: []history.Usage{{Model: "sonnet", InputTokens: 100, CachedInputTokens: 90, OutputTokens: 20, CostMicroUSD: 7}},
		}
		if d := cmp.Diff(want, page.Tasks[0], cmpopts.IgnoreFields(history.TaskSummary{}, "Updated"), cmpopts.EquateApproxTime(0)); d != "" {
			t.Errorf("summary (-want +got):\n%s", d)
		}
		// After a move the sums are those of the active branch.
		a.move("op", 0)
		page, err = store.Tasks(t.Context(), history.TaskQuery{Namespace: "team", NamePrefix: "login-a", Limit: 1})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Tasks).To(ConsistOf(And(
			HaveField("Totals", history.Totals{}), HaveField("Preview", "Fix the login page"))), "after a move")
		if _, err := store.Tasks(t.Context(), history.TaskQuery{Namespace: "team", Sort: "Colour"}); !errors.Is(err, history.ErrInvalid) {
			t.Errorf("an unknown order: %v", err)
		}
	})

	// A transition that is recorded late does not change the state set by a newer one.
	It("a task's state is that of its newest transition", func() {
		t := GinkgoTB()
		store := open(t)
		task := taskNamed("a")
		now := time.Now()
		for _, e := range []history.Event{transition(task, 3, "TaskSuspended", now), transition(task, 2, "TaskResumed", now.Add(-time.Second)), transition(task, 4, "OperationRefused", now.Add(time.Second))} {
			if err := store.RecordEvents(t.Context(), []history.Event{e}); err != nil {
				t.Fatal(err)
			}
		}
		page, err := store.Tasks(t.Context(), history.TaskQuery{Namespace: "team", Limit: 5})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Tasks).To(ConsistOf(HaveField("State", "Suspended")))
	})

	It("pages of tasks follow each other", func() {
		t := GinkgoTB()
		store := open(t)
		at := time.Now().Add(-time.Hour)
		for i := range 25 {
			task := history.Task{Namespace: "team", Name: fmt.Sprintf("t%02d", i), UID: fmt.Sprintf("uid-%02d", i)}
			if err := store.RecordEvents(t.Context(), []history.Event{transition(task, 1, "TaskStarted", at.Add(time.Duration(i/4)*time.Second))}); err != nil {
				t.Fatal(err)
			}
		}
		for _, sort := range []history.TaskSort{history.SortCreated, history.SortUpdated, history.SortCost, history.SortTokens, history.SortMessages, history.SortName} {
			seen := map[string]int{}
			query := history.TaskQuery{Namespace: "team", Limit: 4, Sort: sort}
			for {
				page, err := store.Tasks(t.Context(), query)
				if err != nil {
					t.Fatal(err)
				}
				for _, task := range page.Tasks {
					seen[task.UID]++
				}
				if query.After = page.Next; !page.More {
					break
				}
			}
			for uid, n := range seen {
				if n != 1 {
					t.Errorf("%s: %s was read %d times", sort, uid, n)
				}
			}
			if len(seen) != 25 {
				t.Errorf("%s: %d tasks", sort, len(seen))
			}
		}
	})

	// Agents choose the names of their tools.
	It("a long page of tasks ends early", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openAt(t, dsn)
		for i := range 60 {
			begin(t, store, taskNamed(fmt.Sprintf("task-%02d", i)), 1).append(user("x"))
		}
		_, err := connect(t, dsn).Exec(t.Context(), "UPDATE tasks SET tools = ARRAY (SELECT repeat('x', 197) || i FROM generate_series(100, 599) i)")
		Expect(err).NotTo(HaveOccurred())
		var names []string
		for query := (history.TaskQuery{Namespace: "team", Sort: history.SortName, Limit: 500}); ; {
			page, err := store.Tasks(t.Context(), query)
			Expect(err).NotTo(HaveOccurred())
			Expect(len(page.Tasks)).To(And(BeNumerically(">", 0), BeNumerically("<=", 42)), "4 MiB of names")
			for _, task := range page.Tasks {
				names = append(names, task.Name)
			}
			if !page.More {
				break
			}
			query.After = page.Next
		}
		Expect(names).To(HaveLen(60))
		Expect(slices.IsSorted(names)).To(BeTrue())
	})
})
