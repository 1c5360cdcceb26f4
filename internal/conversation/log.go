package conversation

// Limits on open calls, which are calls without a result. An agent that never
// reports results must neither keep the conversation from having turn boundaries
// nor make the Log grow.
const (
	// MaxTurn is the number of messages for which an open call keeps its turn open.
	MaxTurn = 512
	// MaxOpenCalls bounds the open calls in a Log; the oldest are dropped first.
	MaxOpenCalls = 256
)

// Totals are totals of a conversation up to a position.
type Totals struct {
	// ToolCalls counts the tool calls with a result, except interrupted ones.
	ToolCalls    int64
	InputTokens  int64
	OutputTokens int64
	CostMicroUSD int64
}

// OpenCall is a tool call without a result.
type OpenCall struct {
	ID string `json:"id"`
	// Position is the position of the message that made the call.
	Position int64 `json:"position"`
}

// Log is the state at the head of a conversation. It suffices to append to the
// conversation without reading it. The zero value is an empty conversation.
type Log struct {
	// Position is the head's position: the number of messages.
	Position int64
	// Totals are the totals at the head.
	Totals Totals
	// Boundary is the last turn boundary: the largest position at which no tool
	// call was waiting for its result.
	Boundary int64
	// Settled is the position up to which open calls no longer keep a turn open,
	// since more than MaxTurn messages followed or records are lost.
	Settled int64
	// Open lists the open calls, oldest first.
	Open []OpenCall
}

// Append moves the head past the message. It does not modify the array of the
// previous Open, so copies of the Log stay valid.
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

// MarkLost records that messages after the head are lost. They may have had the
// results of the open calls, which therefore no longer keep a turn open.
func (l *Log) MarkLost() { l.Settled, l.Boundary = l.Position, l.Position }

// AddUsage adds the agent's usage since the last message. A negative cost corrects
// an overestimate. No total becomes negative.
func (l *Log) AddUsage(inputTokens, outputTokens, costMicroUSD int64) {
	l.Totals.InputTokens = add(l.Totals.InputTokens, inputTokens)
	l.Totals.OutputTokens = add(l.Totals.OutputTokens, outputTokens)
	if costMicroUSD < 0 {
		l.Totals.CostMicroUSD = max(l.Totals.CostMicroUSD+costMicroUSD, 0)
		return
	}
	l.Totals.CostMicroUSD = add(l.Totals.CostMicroUSD, costMicroUSD)
}

// At returns the Log of a branch that begins at a turn boundary, with the totals at
// that boundary. No call is open at a boundary.
func At(boundary int64, totals Totals) Log {
	return Log{Position: boundary, Totals: totals, Boundary: boundary, Settled: boundary}
}

// OpenIDs returns the ids of the open calls, oldest first.
func (l *Log) OpenIDs() []string {
	ids := make([]string, 0, len(l.Open))
	for _, c := range l.Open {
		ids = append(ids, c.ID)
	}
	return ids
}

// call adds an open call.
func (l *Log) call(c ToolCall) {
	open := append([]OpenCall(nil), l.Open...)
	if len(open) == MaxOpenCalls {
		open = open[1:]
	}
	l.Open = append(open, OpenCall{ID: c.ID, Position: l.Position})
}

// answer closes the oldest open call with the result's id. A result without an open
// call changes nothing.
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

// waiting reports whether an open call keeps the turn open.
func (l *Log) waiting() bool {
	for _, c := range l.Open {
		if c.Position > l.Settled {
			return true
		}
	}
	return false
}

// add adds n, which is untrusted, to a total. It ignores n if it is negative or the
// sum would overflow.
func add(sum, n int64) int64 {
	if n < 0 || sum+n < sum {
		return sum
	}
	return sum + n
}
