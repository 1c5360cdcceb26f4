package gateway

import (
	"context"
	"time"

	"github.com/clew-dev/clew/internal/budget"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/podidentity"
)

// budgets returns those that a task works under, with what is spent of them; nil if that cannot be read
// now: the daemon goes on with what it was told last.
func (g *Gateway) budgets(ctx context.Context, id podidentity.Identity) *daemonv1.Budgets {
	s, err := g.store.Spending(ctx, taskOf(id), "")
	if err != nil {
		if ctx.Err() == nil && g.outage.due(time.Now()) {
			g.log.Info("what tasks have spent cannot be read; their daemons go on with what they know", "error", err.Error())
		}
		return nil
	}
	told := &daemonv1.Budgets{Through: s.Through}
	for _, b := range []budget.Budget{
		{Scope: budget.OfTask, Limit: s.Limit, Spent: s.Spent},
		{Scope: budget.OfContract, Name: s.Contract, Limit: s.ContractLimit, Spent: s.ContractSpent},
		{Scope: budget.OfNamespace, Limit: g.namespaceBudgets.Of(id.Namespace), Spent: s.Month},
	} {
		if b.Limit != (budget.Amounts{}) {
			told.Budgets = append(told.Budgets, &daemonv1.Budget{Scope: string(b.Scope), Name: b.Name, Limit: amountsMessage(b.Limit), Spent: amountsMessage(b.Spent)})
		}
	}
	return told
}

func amountsMessage(a budget.Amounts) *daemonv1.Amounts {
	return &daemonv1.Amounts{InputTokens: a.InputTokens, OutputTokens: a.OutputTokens, CostMicroUsd: a.CostMicroUSD, ToolCalls: a.ToolCalls, Checkpoints: a.Checkpoints}
}
