package conversation

// Limits of what a Log remembers about calls without a result. An agent that
// never reports results must not keep the conversation from having boundaries,
// nor make the state grow.
const (
	// MaxTurn is how many messages an unanswered call keeps its turn open for.
	MaxTurn = 512
	// MaxOpenCalls is how many unanswered calls are remembered; the oldest are
	// forgotten first.
	MaxOpenCalls = 256
)

// Totals are sums over a conversation up to a position.
type Totals struct {
	// ToolCalls counts the answered tool calls; interrupted ones were not answered.
	ToolCalls    int64
	InputTokens  int64
	OutputTokens int64
	CostMicroUSD int64
}

// OpenCall is a tool call without a result.
type OpenCall struct {
	ID string `json:"id"`
	// Position of the message that made the call.
	Position int64 `json:"position"`
}

// Log is what is known at the head of a conversation: enough to append to it
// without reading it. The zero value is an empty conversation.
type Log struct {
	// Position of the head: the number of messages.
	Position int64
	Totals   Totals
	// Boundary is the last turn boundary up to the head: the largest position
	// at which no tool call waited for its result.
	Boundary int64
	// Settled is the position up to which unanswered calls no longer keep a
	// turn open, since too much has happened after them.
	Settled int64
	// Open are the calls without a result, oldest first.
	Open []OpenCall
}

// Append moves the head past the message. It does not change the slice Open
// that the Log had before.
func (l *Log) Append(m Message) {
	l.Position++
	if m.ToolResult != nil {
		l.answer(*m.ToolResult)
	}
	if m.ToolCall != nil {
		l.call(*m.ToolCall)
	}
	if l.Position-l.Boundary > MaxTurn {
		l.Settled = l.Position
	}
	if !l.waiting() {
		l.Boundary = l.Position
	}
}

// Lose says that messages are lost behind the head. They may have answered the
// calls without a result, which keep no turn open any more.
func (l *Log) Lose() { l.Settled, l.Boundary = l.Position, l.Position }

// Spend adds what the agent used since the last message. A negative cost takes
// back what was counted too much; no sum falls below 0.
func (l *Log) Spend(inputTokens, outputTokens, costMicroUSD int64) {
	l.Totals.InputTokens = add(l.Totals.InputTokens, inputTokens)
	l.Totals.OutputTokens = add(l.Totals.OutputTokens, outputTokens)
	if costMicroUSD < 0 {
		l.Totals.CostMicroUSD = max(l.Totals.CostMicroUSD+costMicroUSD, 0)
		return
	}
	l.Totals.CostMicroUSD = add(l.Totals.CostMicroUSD, costMicroUSD)
}

// At returns the Log of a branch that begins at a turn boundary with the
// totals that were known there. Nothing is open at a boundary.
func At(boundary int64, totals Totals) Log {
	return Log{Position: boundary, Totals: totals, Boundary: boundary, Settled: boundary}
}

// OpenIDs are the ids of the calls without a result, oldest first.
func (l *Log) OpenIDs() []string {
	ids := make([]string, 0, len(l.Open))
	for _, c := range l.Open {
		ids = append(ids, c.ID)
	}
	return ids
}

func (l *Log) call(c ToolCall) {
	open := append([]OpenCall(nil), l.Open...)
	if len(open) == MaxOpenCalls {
		open = open[1:]
	}
	l.Open = append(open, OpenCall{ID: c.ID, Position: l.Position})
}

// answer closes the oldest open call of the id. A result that nobody waits for
// changes nothing.
func (l *Log) answer(r ToolResult) {
	for i, c := range l.Open {
		if c.ID != r.CallID {
			continue
		}
		open := append([]OpenCall(nil), l.Open[:i]...)
		l.Open = append(open, l.Open[i+1:]...)
		if !r.Interrupted {
			l.Totals.ToolCalls++
		}
		return
	}
}

// waiting tells whether a call keeps the turn open.
func (l *Log) waiting() bool {
	for _, c := range l.Open {
		if c.Position > l.Settled {
			return true
		}
	}
	return false
}

// add sums two counters, of which the second comes from outside: what is
// negative or would overflow is left out.
func add(sum, n int64) int64 {
	if n < 0 || sum+n < sum {
		return sum
	}
	return sum + n
}
