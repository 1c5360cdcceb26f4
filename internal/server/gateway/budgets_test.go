package gateway_test

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/internal/budget"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/podidentity"
	"github.com/clew-dev/clew/internal/server/gateway"
)

// members stands in for a cluster whose tasks belong to the contract nightly.
type members struct{ gone }

func (members) CheckTask(context.Context, podidentity.Identity) error { return nil }

func (members) Contract(context.Context, podidentity.Identity) (string, error) {
	return "nightly", nil
}

var _ = Describe("What a daemon is told of budgets", func() {
	var (
		f     *fixture
		store *postgres.Store
	)
	serveMembers := func(budgets string) {
		GinkgoHelper()
		f = serveAt(pg.Database(GinkgoTB()), func(o *gateway.Options) {
			store = o.Store.(*postgres.Store)
			o.Tasks = members{}
			Expect(o.NamespaceBudgets.Set(budgets)).To(Succeed())
		})
	}
	task := func(name string) history.Task {
		id := identity(name, 1)
		return history.Task{Namespace: id.Namespace, Name: id.TaskName, UID: id.TaskUID}
	}
	// told appends records, and returns the budgets in the answer.
	told := func(token string, records ...*daemonv1.Record) *daemonv1.Budgets {
		GinkgoHelper()
		response, err := f.client(token).Append(f.ctx, connect.NewRequest(&daemonv1.AppendRequest{Records: records}))
		Expect(err).NotTo(HaveOccurred())
		return response.Msg.GetBudgets()
	}
	spends := func(sequence, inputTokens int64) *daemonv1.Record {
		return &daemonv1.Record{Sequence: sequence, Attempt: 1, Body: &daemonv1.Record_Usage{Usage: &daemonv1.Usage{InputTokens: inputTokens}}}
	}

	It("are those of its task, its contract and its namespace, with what all have spent", func(ctx SpecContext) {
		serveMembers(`{"perNamespace": {"inputTokens": 5000}}`)
		begun := f.begin("a1")
		Expect(begun.GetBudgets()).To(BeComparableTo(&daemonv1.Budgets{Budgets: []*daemonv1.Budget{
			{Scope: "Namespace", Limit: &daemonv1.Amounts{InputTokens: 5000}, Spent: &daemonv1.Amounts{}},
		}}, protocmp.Transform()))
		f.begin("b1")
		Expect(store.SetBudgets(ctx, task("a"), history.SetBudgets{
			Task: budget.Amounts{InputTokens: 100, ToolCalls: 7}, Contract: "nightly", ContractLimit: budget.Amounts{InputTokens: 1000},
		})).To(Succeed())

		told("b1", spends(1, 40))
		Expect(told("a1", spends(1, 1), spends(2, 2))).To(BeComparableTo(&daemonv1.Budgets{Through: 2, Budgets: []*daemonv1.Budget{
			{Scope: "Task", Limit: &daemonv1.Amounts{InputTokens: 100, ToolCalls: 7}, Spent: &daemonv1.Amounts{InputTokens: 3}},
			{Scope: "Contract", Name: "nightly", Limit: &daemonv1.Amounts{InputTokens: 1000}, Spent: &daemonv1.Amounts{InputTokens: 43}},
			{Scope: "Namespace", Limit: &daemonv1.Amounts{InputTokens: 5000}, Spent: &daemonv1.Amounts{InputTokens: 43}},
		}}, protocmp.Transform()))

		By("sending the same batch again")
		Expect(told("a1", spends(1, 1), spends(2, 2)).GetBudgets()[0].GetSpent().GetInputTokens()).To(BeEquivalentTo(3))

		By("raising the task's, and removing the contract's")
		Expect(store.SetBudgets(ctx, task("a"), history.SetBudgets{Task: budget.Amounts{InputTokens: 900}, Contract: "nightly"})).To(Succeed())
		budgets := told("a1", spends(3, 4)).GetBudgets()
		Expect(budgets).To(HaveLen(2))
		Expect(budgets[0].GetLimit().GetInputTokens()).To(BeEquivalentTo(900))
	})

	It("is that there are none", func() {
		serveMembers(`{"namespaces": {"another": {"toolCalls": 1}}}`)
		f.begin("a1")
		Expect(told("a1", spends(1, 1))).To(BeComparableTo(&daemonv1.Budgets{Through: 1}, protocmp.Transform()))
	})
})
