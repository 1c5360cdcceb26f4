package postgres_test

import (
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	taskplan "github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/testing/cases"
)

func transition(task history.Task, n int64, reason string, at time.Time) history.Event {
	e := event(task, n, at)
	e.Reason = reason
	// The words that users pass to `--state` are those of the manager.
	e.State = taskplan.StateAfter(&v1alpha1.TaskStatus{}, v1alpha1.HistoryEntry{Reason: reason})
	return e
}

// namesOf are the names of the tasks of a list, in its order.
func namesOf(tasks []history.TaskSummary) (names []string) {
	for _, task := range tasks {
		names = append(names, task.Name)
	}
	return names
}

var _ = Describe("The tasks of a name", func() {
	It("are listed newest first, without those of other names and namespaces", func(ctx SpecContext) {
		store := open(GinkgoTB())
		for _, task := range []history.Task{
			{Namespace: "team", Name: "fix", UID: "2-older"}, {Namespace: "team", Name: "fix", UID: "1-newer"},
			{Namespace: "team", Name: "fix-2", UID: "3"}, {Namespace: "elsewhere", Name: "fix", UID: "4"},
		} {
			begin(GinkgoTB(), store, task, 1)
		}
		Expect(store.TasksNamed(ctx, "team", "fix")).To(HaveExactElements(
			SatisfyAll(HaveField("UID", "1-newer"), HaveField("Began", BeTemporally("~", time.Now(), time.Minute))), HaveField("UID", "2-older")))
		Expect(store.TasksNamed(ctx, "team", "none")).To(BeEmpty())
	})

	It("that are gone have left the last state before they were deleted", func(ctx SpecContext) {
		store, now := open(GinkgoTB()), time.Now().Add(-time.Hour).Truncate(time.Microsecond)
		number := int64(0)
		record := func(task history.Task, states ...string) {
			GinkgoHelper()
			for _, state := range states {
				number++
				now = now.Add(time.Second)
				Expect(store.RecordEvents(ctx, []history.Event{{
					ID: fmt.Sprint("e", number), Transition: number, Task: task, Time: now, Type: history.EventTypeTask, Reason: "Task" + state, State: state,
				}})).To(Succeed())
			}
		}
		left := func(name, uid, state string) {
			GinkgoHelper()
			Expect(store.GoneTask(ctx, "team", name)).To(Equal(history.GoneTask{UID: uid, State: state}))
		}
		_, err := store.GoneTask(ctx, "team", "fix")
		Expect(err).To(MatchError(history.ErrNotFound))
		older := history.Task{Namespace: "team", Name: "fix", UID: "2-older"}
		record(older, "Running", "Completed", "")
		left("fix", "2-older", "Completed")
		record(older, "Deleted", "")
		left("fix", "2-older", "Completed")
		newer := history.Task{Namespace: "team", Name: "fix", UID: "1-newer"}
		begin(GinkgoTB(), store, newer, 1)
		left("fix", "1-newer", "")
		record(newer, "Running", "Failed", "Deleted")
		left("fix", "1-newer", "Failed")
		record(history.Task{Namespace: "elsewhere", Name: "fix", UID: "4"}, "Completed")
		record(history.Task{Namespace: "team", Name: "fix-2", UID: "3"}, "Deleted")
		left("fix", "1-newer", "Failed")
		left("fix-2", "3", "")
	})
})

var _ = Describe("A list of tasks", func() {
	Describe("of a namespace", Ordered, ContinueOnFailure, func() {
		start := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
		var store *postgres.Store
		var a *writer
		BeforeAll(func(ctx SpecContext) {
			store = open(GinkgoTB())
			record := func(events ...history.Event) {
				GinkgoHelper()
				Expect(store.RecordEvents(ctx, events)).To(Succeed())
			}
			a = begin(GinkgoTB(), store, taskNamed("login-a"), 1)
			record(transition(a.task, 1, "TaskStarted", start), transition(a.task, 2, "TaskCompleted", start.Add(time.Minute)))
			a.append(user("  Fix\nthe login page "), call("1"), result("1"),
				history.Record{Usage: &history.Usage{InputTokens: 100, OutputTokens: 20, CostMicroUSD: 7, CachedInputTokens: 90, Model: "sonnet"}}, checkpoint(1), user("more"))
			b := begin(GinkgoTB(), store, taskNamed("login-b"), 1)
			record(transition(b.task, 1, "TaskStarted", start.Add(time.Second)), transition(b.task, 2, "OperationRefused", start.Add(time.Hour)))
			b.append(user("b"), usage(1000, 0, 3), history.Record{Message: &conversation.Message{
				Role: conversation.RoleAssistant, ToolCall: &conversation.ToolCall{ID: "1", Name: "Edit", Input: "{}"}}})
			// This one never had a pod.
			c := history.Task{Namespace: "team", Name: "other", UID: "never-began"}
			record(transition(c, 1, "TaskFailed", start.Add(2*time.Second)))
			record(transition(history.Task{Namespace: "elsewhere", Name: "x", UID: "x"}, 1, "TaskStarted", start))
		})

		for name, tt := range cases.Sorted(map[string]struct {
			query history.TaskQuery
			want  []string
		}{
			"is sorted by creation":                                   {history.TaskQuery{}, []string{"other", "login-b", "login-a"}},
			"is sorted by change":                                     {history.TaskQuery{Sort: history.SortUpdated}, []string{"login-b", "login-a", "other"}},
			"is sorted by cost":                                       {history.TaskQuery{Sort: history.SortCost}, []string{"login-a", "login-b", "other"}},
			"is sorted by tokens":                                     {history.TaskQuery{Sort: history.SortTokens}, []string{"login-b", "login-a", "other"}},
			"is sorted by messages":                                   {history.TaskQuery{Sort: history.SortMessages}, []string{"login-a", "login-b", "other"}},
			"is sorted by name":                                       {history.TaskQuery{Sort: history.SortName}, []string{"login-a", "login-b", "other"}},
			"is filtered by a prefix of names":                        {history.TaskQuery{NamePrefix: "login-"}, []string{"login-b", "login-a"}},
			"is filtered by a prefix, which is no pattern":            {history.TaskQuery{NamePrefix: "%"}, nil},
			"is filtered by state":                                    {history.TaskQuery{State: "Running"}, []string{"login-b"}},
			"is filtered by the state of a task that never had a pod": {history.TaskQuery{State: "Failed"}, []string{"other"}},
			"is filtered by a tool":                                   {history.TaskQuery{Tool: "Bash"}, []string{"login-a"}},
			"is filtered by a tool, whose case matters":               {history.TaskQuery{Tool: "bash"}, nil},
			"is filtered by a minimum of tokens":                      {history.TaskQuery{MinTokens: 121}, []string{"login-b"}},
			"is filtered by a minimum of cost":                        {history.TaskQuery{MinCostMicroUSD: 7}, []string{"login-a"}},
			"is filtered by creation since a time":                    {history.TaskQuery{Since: start.Add(time.Second)}, []string{"other", "login-b"}},
			"is filtered by creation until a time":                    {history.TaskQuery{Until: start.Add(2 * time.Second)}, []string{"login-b", "login-a"}},
		}) {
			It(name, func(ctx SpecContext) {
				tt.query.Namespace, tt.query.Limit = "team", 100
				page, err := store.Tasks(ctx, tt.query)
				Expect(err).NotTo(HaveOccurred())
				Expect(namesOf(page.Tasks)).To(Equal(tt.want))
			})
		}

		It("is refused in an unknown order", func(ctx SpecContext) {
			_, err := store.Tasks(ctx, history.TaskQuery{Namespace: "team", Sort: "Colour"})
			Expect(err).To(MatchError(history.ErrInvalid))
		})

		It("has a summary of each task, with the sums of the active branch", func(ctx SpecContext) {
			query := history.TaskQuery{Namespace: "team", NamePrefix: "login-a", Limit: 1}
			page, err := store.Tasks(ctx, query)
			Expect(err).NotTo(HaveOccurred())
			Expect(page.Tasks).To(HaveExactElements(BeComparableTo(history.TaskSummary{
				Task: a.task, State: "Completed", Preview: "Fix the login page", Created: start, Checkpoints: 1, Tools: []string{"Bash"},
				Totals: history.Totals{Messages: 4, ToolCalls: 1, InputTokens: 100, OutputTokens: 20, CostMicroUSD: 7},
				Models: []history.Usage{{Model: "sonnet", InputTokens: 100, CachedInputTokens: 90, OutputTokens: 20, CostMicroUSD: 7}},
			}, cmpopts.IgnoreFields(history.TaskSummary{}, "Updated"), cmpopts.EquateApproxTime(0))))

			By("going back to the beginning")
			a.move("op", 0)
			page, err = store.Tasks(ctx, query)
			Expect(err).NotTo(HaveOccurred())
			Expect(page.Tasks).To(HaveExactElements(And(
				HaveField("Totals", history.Totals{}), HaveField("Preview", "Fix the login page"))))
		})
	})

	When("a transition is recorded late", func() {
		It("shows the state that a newer one has set", func(ctx SpecContext) {
			store, task, now := open(GinkgoTB()), taskNamed("a"), time.Now()
			for _, e := range []history.Event{transition(task, 3, "TaskSuspended", now), transition(task, 2, "TaskResumed", now.Add(-time.Second)), transition(task, 4, "OperationRefused", now.Add(time.Second))} {
				Expect(store.RecordEvents(ctx, []history.Event{e})).To(Succeed())
			}
			page, err := store.Tasks(ctx, history.TaskQuery{Namespace: "team", Limit: 5})
			Expect(err).NotTo(HaveOccurred())
			Expect(page.Tasks).To(ConsistOf(HaveField("State", "Suspended")))
		})
	})

	Describe("that is read in pages", func() {
		It("has each task on one page, in any order", func(ctx SpecContext) {
			store := open(GinkgoTB())
			at := time.Now().Add(-time.Hour)
			want := map[string]int{}
			for i := range 25 {
				task := history.Task{Namespace: "team", Name: fmt.Sprintf("t%02d", i), UID: fmt.Sprintf("uid-%02d", i)}
				Expect(store.RecordEvents(ctx, []history.Event{transition(task, 1, "TaskStarted", at.Add(time.Duration(i/4)*time.Second))})).To(Succeed())
				want[task.UID] = 1
			}
			for _, sort := range []history.TaskSort{history.SortCreated, history.SortUpdated, history.SortCost, history.SortTokens, history.SortMessages, history.SortName} {
				seen := map[string]int{}
				query := history.TaskQuery{Namespace: "team", Limit: 4, Sort: sort}
				for more := true; more; {
					page, err := store.Tasks(ctx, query)
					Expect(err).NotTo(HaveOccurred())
					for _, task := range page.Tasks {
						seen[task.UID]++
					}
					query.After, more = page.Next, page.More
				}
				Expect(seen).To(Equal(want), "how often each task was read, by %s", sort)
			}
		})

		// Agents choose the names of their tools.
		It("has shorter pages if the tasks are large", func(ctx SpecContext) {
			dsn := pg.Database(GinkgoTB())
			store := openAt(GinkgoTB(), dsn)
			for i := range 60 {
				begin(GinkgoTB(), store, taskNamed(fmt.Sprintf("task-%02d", i)), 1).append(user("x"))
			}
			Expect(connect(GinkgoTB(), dsn).Exec(ctx, "UPDATE tasks SET tools = ARRAY (SELECT repeat('x', 197) || i FROM generate_series(100, 599) i)")).Error().NotTo(HaveOccurred())
			var names []string
			query := history.TaskQuery{Namespace: "team", Sort: history.SortName, Limit: 500}
			for more := true; more; {
				page, err := store.Tasks(ctx, query)
				Expect(err).NotTo(HaveOccurred())
				Expect(len(page.Tasks)).To(And(BeNumerically(">", 0), BeNumerically("<=", 42)), "4 MiB of names")
				names = append(names, namesOf(page.Tasks)...)
				query.After, more = page.Next, page.More
			}
			Expect(names).To(HaveLen(60))
			Expect(slices.IsSorted(names)).To(BeTrue())
		})
	})
})
