package postgres_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

// orders returns each order of the given steps.
func orders(steps []string) (all [][]string) {
	if len(steps) < 2 {
		return [][]string{steps}
	}
	for i, first := range steps {
		for _, rest := range orders(slices.Delete(slices.Clone(steps), i, i+1)) {
			all = append(all, append([]string{first}, rest...))
		}
	}
	return all
}

var _ = Describe("What was spent", func() {
	var (
		dsn   string
		store *postgres.Store
		w     *writer
	)
	BeforeEach(func() {
		dsn = pg.Database(GinkgoTB())
		store = openAt(GinkgoTB(), dsn)
		w = begin(GinkgoTB(), store, taskNamed("a"), 1)
	})
	// member begins an attempt of a task of a contract.
	member := func(name, contract string, attempt int64) *writer {
		GinkgoHelper()
		state, err := store.Begin(GinkgoTB().Context(), taskNamed(name), attempt, nil, history.BeginOptions{Contract: contract})
		Expect(err).NotTo(HaveOccurred())
		return &writer{t: GinkgoTB(), store: store, task: taskNamed(name), attempt: attempt, last: state.LastSequence}
	}
	spending := func(ctx context.Context, w *writer) history.Spending {
		GinkgoHelper()
		s, err := store.Spending(ctx, w.task, "")
		Expect(err).NotTo(HaveOccurred())
		return s
	}

	It("is counted once, whatever is sent again", func(ctx SpecContext) {
		records := w.number(user("1"), call("x"), result("x"), usage(10, 20, 30), checkpoint(1))
		for range 3 {
			Expect(store.Append(ctx, w.task, 1, records)).To(BeEquivalentTo(5))
		}
		durable := checkpoint(1)
		durable.Checkpoint.Durable = true
		w.append(durable)
		w.last++ // a record is missing
		_, err := store.Append(ctx, w.task, 1, w.number(usage(1, 2, 3)))
		Expect(err).To(MatchError(history.ErrGap))
		want := budget.Amounts{InputTokens: 10, OutputTokens: 20, CostMicroUSD: 30, ToolCalls: 1, Checkpoints: 1}
		Expect(w.state().Spent).To(Equal(want))
		Expect(spending(ctx, w)).To(Equal(history.Spending{Through: 6, Spent: want, Month: want}))
	})

	It("has no checkpoints in it that somebody has asked for, but those of the phases that the agent has set", func(ctx SpecContext) {
		asked := checkpoint(2)
		asked.Checkpoint.Trigger = string(v1alpha1.TriggerManual)
		phase := checkpoint(3)
		phase.Checkpoint.Trigger = string(v1alpha1.TriggerPhase)
		m := member("b", "nightly", 1)
		for range 2 {
			m.append(checkpoint(1), asked, phase)
		}
		want := budget.Amounts{Checkpoints: 2}
		Expect(m.state()).To(And(HaveField("Spent", want), HaveField("CheckpointCount", int64(3))))
		Expect(spending(ctx, m)).To(Equal(history.Spending{Through: 6, Spent: want, Contract: "nightly", ContractSpent: want, Month: want}))
	})

	It("counts completed calls, whether or not anybody knows them, and no interrupted ones", func() {
		w.append(call("x"), interrupted("x"), call("y"), call("z"), result("z"), result("stray"))
		Expect(w.state().Spent.ToolCalls).To(BeEquivalentTo(2))
	})

	It("stays spent through retries and rewinds, of which the totals of the conversation know nothing", func(ctx SpecContext) {
		w.append(user("1"), usage(1, 2, 3), checkpoint(1), call("x"), result("x"), usage(10, 20, 30), checkpoint(2))
		w.move("back", 1)
		w.append(call("y"), result("y"), usage(100, 200, 300), checkpoint(3))
		w.move("again", 0)
		w = begin(GinkgoTB(), store, w.task, 2)
		w.append(usage(1000, 2000, 3000), history.Record{Move: &history.MoveOperation{ID: "and-again", Checkpoint: 1}}, usage(10000, 20000, 30000))
		Expect(w.state().Spent).To(Equal(budget.Amounts{InputTokens: 11111, OutputTokens: 22222, CostMicroUSD: 33333, ToolCalls: 2, Checkpoints: 3}))
		Expect(w.state().Totals.InputTokens).To(BeEquivalentTo(10001))
	})

	It("begins at zero for a fork, whose conversation its source has paid for", func(ctx SpecContext) {
		w.append(user("1"), call("x"), result("x"), usage(10, 20, 30), checkpoint(1))
		fork := w.fork("forked", 1)
		Expect(fork.state().Totals.InputTokens).To(BeEquivalentTo(10))
		Expect(fork.state().Spent).To(BeZero())
		fork.append(usage(1, 2, 3))
		Expect(fork.state().Spent).To(Equal(budget.Amounts{InputTokens: 1, OutputTokens: 2, CostMicroUSD: 3}))
		Expect(w.state().Spent).To(Equal(budget.Amounts{InputTokens: 10, OutputTokens: 20, CostMicroUSD: 30, ToolCalls: 1, Checkpoints: 1}))
		Expect(spending(ctx, w).Month).To(Equal(budget.Amounts{InputTokens: 11, OutputTokens: 22, CostMicroUSD: 33, ToolCalls: 1, Checkpoints: 1}))
	})

	It("follows corrections of a cost, and never falls below zero", func(ctx SpecContext) {
		w.append(usage(0, 0, 100))
		w.append(usage(0, 0, -30))
		Expect(w.state().Spent.CostMicroUSD).To(BeEquivalentTo(70))
		w.append(usage(0, 0, -30), usage(0, 0, 10))
		Expect(w.state().Spent.CostMicroUSD).To(BeEquivalentTo(50))
		w.append(usage(0, 0, -1000))
		Expect(w.state().Spent).To(BeZero())
	})

	It("bears what an agent makes up", func(ctx SpecContext) {
		for range 3 {
			w.append(usage(math.MaxInt64, math.MinInt64, math.MaxInt64))
		}
		w.append(usage(0, 0, math.MinInt64))
		want := budget.Amounts{InputTokens: 3 * budget.MostTokens, CostMicroUSD: 2 * budget.MostCost}
		Expect(w.state().Spent).To(Equal(want))
		Expect(spending(ctx, w).Month).To(Equal(want))
	})

	It("never reaches the highest limit", func(ctx SpecContext) {
		m := member("b", "nightly", 1)
		m.append(usage(1, 0, 0))
		for _, table := range []string{"tasks", "budgets"} {
			Expect(connect(GinkgoTB(), dsn).Exec(ctx, fmt.Sprintf("UPDATE %s SET spent_input_tokens = %d", table, budget.Most-1))).Error().NotTo(HaveOccurred())
		}
		for range 3 {
			m.append(usage(math.MaxInt64, 0, math.MaxInt64))
		}
		got := spending(ctx, m)
		for _, spent := range []budget.Amounts{got.Spent, got.ContractSpent, got.Month} {
			Expect(spent.InputTokens).To(And(Equal(budget.Most), BeNumerically("<", budget.MostLimit)))
		}
	})

	It("by others is nothing that a task takes back with a correction", func(ctx SpecContext) {
		b, c := member("b", "nightly", 1), member("c", "nightly", 1)
		b.append(usage(0, 0, 5))
		c.append(usage(0, 0, 5))
		b.append(usage(0, 0, -1e12))
		Expect(b.state().Spent).To(BeZero())
		Expect(spending(ctx, c)).To(And(HaveField("ContractSpent.CostMicroUSD", int64(5)), HaveField("Month.CostMicroUSD", int64(5))))
		b.append(usage(0, 0, 7), usage(0, 0, -3))
		Expect(spending(ctx, c)).To(And(HaveField("ContractSpent.CostMicroUSD", int64(9)), HaveField("Month.CostMicroUSD", int64(9))))
	})

	It("in another month is nothing that a task takes back in this one", func(ctx SpecContext) {
		b, c := member("b", "nightly", 1), member("c", "nightly", 1)
		b.append(usage(0, 0, 100))
		Expect(connect(GinkgoTB(), dsn).Exec(ctx, "UPDATE tasks SET spent_month = '2020-01'")).Error().NotTo(HaveOccurred())
		Expect(connect(GinkgoTB(), dsn).Exec(ctx, "UPDATE budgets SET name = '2020-01' WHERE scope = 'month'")).Error().NotTo(HaveOccurred())
		c.append(usage(0, 0, 50))
		b.append(usage(0, 0, -40), usage(0, 0, 10))
		Expect(spending(ctx, c)).To(And(HaveField("ContractSpent.CostMicroUSD", int64(120)), HaveField("Month.CostMicroUSD", int64(50))))
	})

	It("for another contract is nothing that a task takes back of this one", func(ctx SpecContext) {
		member("b", "nightly", 1).append(usage(0, 0, 100))
		member("c", "weekly", 1).append(usage(0, 0, 50))
		heir := member("b", "weekly", 2)
		heir.append(usage(0, 0, -40))
		Expect(spending(ctx, heir)).To(And(HaveField("Spent.CostMicroUSD", int64(60)), HaveField("ContractSpent.CostMicroUSD", int64(50))))
	})

	It("counts what is left out of the history at a limit", func(ctx SpecContext) {
		w := begin(GinkgoTB(), limited(GinkgoTB(), dsn, postgres.Limits{TaskBytes: 64 << 10, Grace: time.Nanosecond}), taskNamed("b"), 1)
		w.append(noise(60))
		waiting := w.number(call("x"), noise(60), result("x"))
		Expect(w.store.Append(ctx, w.task, 1, waiting)).Error().To(MatchError(history.ErrLimitReached))
		Expect(w.store.Append(ctx, w.task, 1, waiting)).Error().NotTo(HaveOccurred())
		Expect(w.state().LeftOutRecords).To(BeEquivalentTo(3))
		Expect(w.state().Spent.ToolCalls).To(BeEquivalentTo(1))
	})

	It("is added up for a contract, by tasks that spend at once", func(ctx SpecContext) {
		const tasks, each = 6, 20
		w.append(usage(7, 0, 0)) // of no contract
		var group sync.WaitGroup
		for n := range tasks {
			m := member(string(rune('b'+n)), "nightly", 1)
			group.Go(func() {
				defer GinkgoRecover()
				for range each {
					m.append(call("x"), result("x"), usage(1, 2, 3))
				}
			})
		}
		group.Wait()
		other := member("z", "weekly", 1)
		other.append(usage(5, 5, 5))
		got := spending(ctx, member("b", "nightly", 2))
		Expect(got.Contract).To(Equal("nightly"))
		Expect(got.ContractSpent).To(Equal(budget.Amounts{InputTokens: tasks * each, OutputTokens: 2 * tasks * each, CostMicroUSD: 3 * tasks * each, ToolCalls: tasks * each}))
		Expect(got.Month.InputTokens).To(BeEquivalentTo(tasks*each + 12))
		Expect(store.Spending(ctx, history.Task{Namespace: "team", Name: "new", UID: "new"}, "weekly")).To(HaveField("ContractSpent.InputTokens", int64(5)))
		Expect(store.Spending(ctx, history.Task{Namespace: "elsewhere", Name: "b", UID: "uid-of-b"}, "nightly")).To(
			Equal(history.Spending{Contract: "nightly"}), "another namespace learns nothing")
	})

	It("of a contract and of a month stays when a history is deleted", func(ctx SpecContext) {
		b, c := member("b", "nightly", 1), member("c", "nightly", 1)
		b.append(usage(10, 0, 0))
		c.append(usage(5, 0, 0))
		Expect(store.DeleteTask(ctx, b.task.UID)).Error().NotTo(HaveOccurred())
		Expect(store.Clean(ctx, postgres.MaintenanceOptions{})).To(Succeed())
		Expect(spending(ctx, c)).To(And(HaveField("ContractSpent.InputTokens", int64(15)), HaveField("Month.InputTokens", int64(15))))
	})

	It("of a contract goes with the last history that names it, and its limit stays", func(ctx SpecContext) {
		b, c, other := member("b", "nightly", 1), member("c", "nightly", 1), member("d", "weekly", 1)
		for _, m := range []*writer{b, c, other} {
			m.append(usage(10, 20, 30), call("x"), result("x"), checkpoint(1))
		}
		limit := budget.Amounts{InputTokens: 15}
		Expect(store.SetBudgets(ctx, c.task, history.SetBudgets{Contract: "nightly", ContractLimit: limit})).To(Succeed())
		Expect(store.DeleteTask(ctx, b.task.UID)).Error().NotTo(HaveOccurred())
		Expect(spending(ctx, c).ContractSpent.InputTokens).To(BeEquivalentTo(20))
		Expect(store.DeleteTask(ctx, c.task.UID)).Error().NotTo(HaveOccurred())
		Expect(spending(ctx, member("e", "nightly", 1))).To(And(HaveField("ContractSpent", budget.Amounts{}), HaveField("ContractLimit", limit)))
		Expect(spending(ctx, other).ContractSpent.InputTokens).To(BeEquivalentTo(10))
	})

	It("is counted again after an older copy has lost it, once, and what was lost does not count when it is sent again", func(ctx SpecContext) {
		m := member("b", "nightly", 1)
		m.append(usage(1, 0, 0), call("x"), result("x"), checkpoint(1))
		lost := budget.Amounts{InputTokens: 100, OutputTokens: 10, CostMicroUSD: 7, ToolCalls: 1, Checkpoints: 9}
		for range 2 {
			Expect(store.RecallSpending(ctx, m.task, lost, 6)).To(Succeed())
		}
		want := budget.Amounts{InputTokens: 100, OutputTokens: 10, CostMicroUSD: 7, ToolCalls: 1, Checkpoints: 1}
		Expect(spending(ctx, m)).To(Equal(history.Spending{Through: 6, Spent: want, Contract: "nightly", ContractSpent: want, Month: want}))
		Expect(m.state().Spent).To(Equal(want))

		By("sending some of it again, and what was spent since")
		m.append(usage(50, 0, 0), history.Record{Gap: &history.Gap{Through: 6, Reason: v1alpha1.ReasonHistoryStoreWentBack}}, usage(1, 1, 1))
		want = want.Plus(budget.Amounts{InputTokens: 1, OutputTokens: 1, CostMicroUSD: 1})
		Expect(spending(ctx, m)).To(Equal(history.Spending{Through: 7, Spent: want, Contract: "nightly", ContractSpent: want, Month: want}))

		By("telling what it knows")
		Expect(store.RecallSpending(ctx, m.task, budget.Amounts{InputTokens: 5}, 2)).To(Succeed())
		Expect(spending(ctx, m).Spent).To(Equal(want))
		Expect(store.RecallSpending(ctx, history.Task{Namespace: "team", Name: "new", UID: "new"}, lost, 6)).To(MatchError(history.ErrNotFound))
	})

	// The copy has 10 of the supervisor and of each of two workers, who had spent 20 each before it took the place of the
	// database. A third one had begun after the copy was made and spent 20, and tasks that are gone had spent 10.
	Context("under a contract of which an older copy has lost some", func() {
		ofContract := budget.Amounts{InputTokens: 80, OutputTokens: 3, CostMicroUSD: 5, ToolCalls: 2, Checkpoints: 9}
		var supervisor, recalls, sends, begins *writer
		var lost map[string]func(context.Context)
		BeforeEach(func() {
			supervisor, recalls, sends = member("b", "nightly", 1), member("c", "nightly", 1), member("d", "nightly", 1)
			for _, m := range []*writer{supervisor, recalls, sends} {
				m.append(usage(10, 0, 0))
			}
			of := checkpoint(1)
			sent, begun := sends.number(usage(10, 0, 0), of), (&writer{attempt: 1}).number(usage(20, 0, 0))
			lost = map[string]func(context.Context){
				"its supervisor recalls what it knows of all": func(ctx context.Context) {
					Expect(store.RecallContractSpending(ctx, supervisor.task, "nightly", ofContract, time.Now())).To(Succeed())
				},
				"one recalls its own": func(ctx context.Context) {
					Expect(store.RecallSpending(ctx, recalls.task, budget.Amounts{InputTokens: 20}, 3)).To(Succeed())
				},
				"one sends its own again": func(ctx context.Context) {
					Expect(store.Append(ctx, sends.task, 1, sent)).Error().NotTo(HaveOccurred())
				},
				"one that the copy does not know begins again": func(ctx context.Context) {
					begins = member("e", "nightly", 2)
					Expect(store.Append(ctx, begins.task, 2, begun)).Error().NotTo(HaveOccurred())
					begins.last = 1
				},
			}
		})
		for _, order := range orders([]string{
			"its supervisor recalls what it knows of all", "one recalls its own", "one sends its own again", "one that the copy does not know begins again",
		}) {
			It("is counted once: "+strings.Join(order, ", "), func(ctx SpecContext) {
				for _, what := range append(order, order[:1]...) {
					lost[what](ctx)
				}
				Expect(spending(ctx, supervisor).ContractSpent).To(Equal(ofContract))
				Expect(spending(ctx, recalls)).To(HaveField("Spent.InputTokens", int64(20)))

				By("spending more")
				later := checkpoint(2)
				sends.append(usage(5, 1, 1), call("x"), result("x"), later, later)
				recalls.append(usage(10, 0, 0), history.Record{Gap: &history.Gap{Through: 3, Reason: v1alpha1.ReasonHistoryStoreWentBack}}, usage(3, 0, 0))
				begins.append(usage(2, 0, -100))
				want := budget.Amounts{InputTokens: 90, OutputTokens: 4, CostMicroUSD: 6, ToolCalls: 3, Checkpoints: 10}
				Expect(spending(ctx, supervisor).ContractSpent).To(Equal(want), "nobody takes back what others have spent")
				sends.append(usage(0, 0, -100))
				Expect(spending(ctx, supervisor).ContractSpent.CostMicroUSD).To(BeEquivalentTo(5))
			})
		}

		It("has in it what was spent since it was known, in the outage before the recall", func(ctx SpecContext) {
			known := time.Now()
			spooled := supervisor.number(usage(40, 0, 0)) // made later
			Expect(store.RecallContractSpending(ctx, supervisor.task, "nightly", ofContract, known)).To(Succeed())
			Expect(store.Append(ctx, supervisor.task, 1, spooled)).Error().NotTo(HaveOccurred())
			Expect(spending(ctx, supervisor).ContractSpent.InputTokens).To(BeEquivalentTo(120))
		})

		It("is what its tasks add up to once that is more", func(ctx SpecContext) {
			Expect(store.RecallContractSpending(ctx, supervisor.task, "nightly", ofContract, time.Now())).To(Succeed())
			Expect(store.RecallSpending(ctx, recalls.task, budget.Amounts{InputTokens: 100}, 3)).To(Succeed())
			Expect(spending(ctx, supervisor).ContractSpent.InputTokens).To(BeEquivalentTo(120))
			supervisor.append(usage(5, 0, 0))
			Expect(spending(ctx, supervisor).ContractSpent.InputTokens).To(BeEquivalentTo(125))
		})

		It("is counted of a contract of which nothing is known, and goes with the last history that names it", func(ctx SpecContext) {
			Expect(store.RecallContractSpending(ctx, supervisor.task, "weekly", ofContract, time.Now())).To(Succeed())
			weekly := member("f", "weekly", 1)
			Expect(spending(ctx, weekly).ContractSpent).To(Equal(ofContract))
			Expect(store.DeleteTask(ctx, weekly.task.UID)).Error().NotTo(HaveOccurred())
			again := member("g", "weekly", 1)
			again.append(usage(1, 0, 0))
			Expect(spending(ctx, again).ContractSpent).To(Equal(budget.Amounts{InputTokens: 1}))
		})
	})

	It("goes with a history that another Task adopts", func(ctx SpecContext) {
		w.append(usage(10, 20, 30), checkpoint(1))
		Expect(store.SetBudgets(ctx, w.task, history.SetBudgets{Task: budget.Amounts{ToolCalls: 5}})).To(Succeed())
		heir := w.task
		heir.UID = "uid-of-the-heir"
		Expect(store.Adopt(ctx, heir, w.task.UID)).To(Succeed())
		Expect(store.Spending(ctx, heir, "")).To(And(
			HaveField("Spent", budget.Amounts{InputTokens: 10, OutputTokens: 20, CostMicroUSD: 30, Checkpoints: 1}),
			HaveField("Limit", budget.Amounts{}))) // its own Task says what that is
	})

	It("is told beside what may be spent", func(ctx SpecContext) {
		m := member("b", "nightly", 1)
		own, of := budget.Amounts{ToolCalls: 5, CostMicroUSD: 7}, budget.Amounts{InputTokens: 9}
		Expect(store.SetBudgets(ctx, m.task, history.SetBudgets{Task: own, Contract: "nightly", ContractLimit: of})).To(Succeed())
		m.append(usage(1, 2, 3))
		Expect(spending(ctx, m)).To(Equal(history.Spending{
			Through: 1, Limit: own, Spent: budget.Amounts{InputTokens: 1, OutputTokens: 2, CostMicroUSD: 3},
			Contract: "nightly", ContractLimit: of, ContractSpent: budget.Amounts{InputTokens: 1, OutputTokens: 2, CostMicroUSD: 3},
			Month: budget.Amounts{InputTokens: 1, OutputTokens: 2, CostMicroUSD: 3},
		}))
		Expect(store.SetBudgets(ctx, m.task, history.SetBudgets{Contract: "nightly"})).To(Succeed())
		Expect(spending(ctx, m)).To(And(HaveField("Limit", budget.Amounts{}), HaveField("ContractLimit", budget.Amounts{}),
			HaveField("ContractSpent.InputTokens", int64(1))))
	})
})
