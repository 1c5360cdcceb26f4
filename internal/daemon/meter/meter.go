// Package meter knows, in a task's pod, which budgets the task works under and what is spent of them.
//
// It promises:
//
//   - What the server has counted and what it has yet to be told are counted once each, whatever is sent
//     again and whoever is killed. While the server is away, what this pod spends still counts.
//   - A limit that the server says is raised or lowered counts at once.
//   - What was spent stays spent when the server goes back to an older copy of its store.
//   - Of others who share a budget it knows what the server said last.
//   - Memory is bounded, however long the server is away.
package meter

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/durable"
)

const (
	// maxUnsent bounds the entries about what the server has yet to count. Beyond it, neighbours are
	// merged: the server then counts a merged one only once it has all of it.
	maxUnsent = 1024
	// readRecords and readBytes bound one read of the spool.
	readRecords = 256
	readBytes   = 1 << 20
)

// Told is what is known of the budgets by records through a sequence.
type Told struct {
	// Attempt is the one in which it was told.
	Attempt int64 `json:"attempt"`
	// Through is the sequence of the last record that is counted.
	Through int64           `json:"through"`
	Budgets []budget.Budget `json:"budgets,omitempty"`
}

// Config configures a Meter.
type Config struct {
	// Path is the file that keeps what the server said, for a daemon that is started again.
	Path string
	// Spool has the records that the server has yet to get.
	Spool *spool.Spool
	// Told is what the manager knew when it made the pod.
	Told Told
	Log  logr.Logger
}

// Meter is safe for concurrent use. Create one with Open.
type Meter struct {
	cfg Config

	mu     sync.Mutex
	told   Told
	kept   bool    // the file may have something
	unsent []spent // by records after told.Through, in their order
	// floor is what was spent before the server went back, until it has counted that far again.
	floor Told
}

// spent is what records through a sequence add to what those of the entry before have.
type spent struct {
	through int64
	amounts budget.Amounts
}

// Open returns the meter of an attempt, which counts what is in the spool, and whatever is appended to it
// from now on. Nothing may be appended meanwhile.
func Open(cfg Config) (*Meter, error) {
	m := &Meter{cfg: cfg, told: cfg.Told}
	if kept, ok := read(cfg.Path); ok {
		m.kept = true
		if kept.Attempt == cfg.Told.Attempt && kept.Through >= cfg.Told.Through {
			m.told = kept
		}
	}
	for after := max(m.told.Through, cfg.Spool.First()-1); ; {
		records, err := cfg.Spool.Read(after, readRecords, readBytes)
		if err != nil {
			return nil, fmt.Errorf("count what the server has yet to be told: %w", err)
		}
		if len(records) == 0 {
			break
		}
		m.count(records)
		after = records[len(records)-1].GetSequence()
	}
	cfg.Spool.Observe(m.count)
	return m, nil
}

// read returns what an earlier process was told, if that can be read.
func read(path string) (told Told, ok bool) {
	content, err := os.ReadFile(path)
	if err != nil {
		return told, false
	}
	return told, json.Unmarshal(content, &told) == nil
}

// count adds what records say that was spent.
func (m *Meter) count(records []*daemonv1.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range records {
		if amounts := amountsOf(r); amounts != (budget.Amounts{}) && r.GetSequence() > m.told.Through {
			m.unsent = append(m.unsent, spent{r.GetSequence(), amounts})
		}
	}
	if len(m.unsent) > maxUnsent {
		m.merge()
	}
}

// merge halves the number of entries.
func (m *Meter) merge() {
	merged := m.unsent[:0]
	for i := 0; i < len(m.unsent); i += 2 {
		e := m.unsent[i]
		if i+1 < len(m.unsent) {
			e = spent{m.unsent[i+1].through, e.amounts.Plus(m.unsent[i+1].amounts)}
		}
		merged = append(merged, e)
	}
	m.unsent = merged
}

// amountsOf returns what a record says that was spent. A checkpoint counts when it is taken, and not when
// it is durable or sent again; one that somebody has asked for with a Checkpoint object does not: the task
// has not.
func amountsOf(r *daemonv1.Record) budget.Amounts {
	if u := r.GetUsage(); u != nil {
		return budget.Used(u.GetInputTokens(), u.GetOutputTokens(), u.GetCostMicroUsd())
	}
	if result := r.GetMessage().GetToolResult(); result != nil && !result.GetInterrupted() {
		return budget.Amounts{ToolCalls: 1}
	}
	if c := r.GetCheckpoint(); c != nil && !c.GetDurable() && c.GetAfterSequence() == 0 && c.GetTrigger() != string(v1alpha1.TriggerManual) {
		return budget.Amounts{Checkpoints: 1}
	}
	return budget.Amounts{}
}

// Tell says what the server knows. Nil is nothing: the server is of an older version, or could not look.
// It must return before the spool drops records that the server has.
func (m *Meter) Tell(b *daemonv1.Budgets) {
	if b == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	next := Told{Attempt: m.cfg.Told.Attempt, Through: b.GetThrough()}
	for _, one := range b.GetBudgets() {
		next.Budgets = append(next.Budgets, budget.Budget{
			Scope: budget.Scope(one.GetScope()), Name: one.GetName(), Limit: amounts(one.GetLimit()), Spent: amounts(one.GetSpent()),
		})
	}
	if next.Through < m.told.Through {
		m.floor = Told{Through: max(m.told.Through, m.floor.Through), Budgets: m.budgets()}
	}
	m.told = next
	if next.Through >= m.floor.Through {
		m.floor = Told{}
	}
	left := 0
	for left < len(m.unsent) && m.unsent[left].through <= next.Through {
		left++
	}
	m.unsent = m.unsent[left:]
	m.keep()
}

// keep writes what the server said to the file. If that fails, a daemon that is started again counts from
// what was said before.
func (m *Meter) keep() {
	if len(m.told.Budgets) == 0 && !m.kept {
		return
	}
	content, err := json.Marshal(m.told)
	if err == nil {
		err = m.cfg.Spool.CheckOwner()
	}
	if err == nil {
		err = durable.Write(m.cfg.Path, content, 0o600)
	}
	if err != nil {
		m.cfg.Log.V(1).Info("what is spent of the budgets could not be kept", "error", err.Error())
		return
	}
	m.kept = len(m.told.Budgets) > 0
}

// budgets returns the budgets with all that is known to be spent.
func (m *Meter) budgets() []budget.Budget {
	all := make([]budget.Budget, 0, len(m.told.Budgets))
	for _, b := range m.told.Budgets {
		for _, e := range m.unsent {
			b.Spent = b.Spent.Plus(e.amounts)
		}
		for _, f := range m.floor.Budgets {
			if f.Scope == b.Scope && f.Name == b.Name {
				b.Spent = b.Spent.AtLeast(f.Spent)
			}
		}
		all = append(all, b)
	}
	return all
}

// Exceeded returns the first limit of which all is spent; nil if there is none.
func (m *Meter) Exceeded() *budget.Use {
	m.mu.Lock()
	defer m.mu.Unlock()
	return budget.Exceeded(m.budgets())
}

func amounts(a *daemonv1.Amounts) budget.Amounts {
	return budget.Amounts{
		InputTokens: a.GetInputTokens(), OutputTokens: a.GetOutputTokens(), CostMicroUSD: a.GetCostMicroUsd(),
		ToolCalls: a.GetToolCalls(), Checkpoints: a.GetCheckpoints(),
	}
}
