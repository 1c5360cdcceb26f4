// Package record turns what an agent prints into records on the volume.
//
// It promises:
//
//   - A line counts as recorded only when all that it says is on disk, after what it
//     says was done. Lines that come again are recorded once, whatever was killed when.
//   - A line may be of any length: memory stays bounded, and nothing is left out.
//   - The values of Secrets are in no record.
//
// It knows neither the shim nor checkpoints: whoever gives it lines is told how far
// they are recorded, and of which tool calls they tell.
package record

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/daemon/agentstate"
	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const (
	// maxLine is the length up to which a line is read whole.
	maxLine = 1 << 20
	// maxPending is how much of the output may wait for the rest of a message
	// that is being streamed; less than the shim keeps of it.
	maxPending = 4 << 20
	// maxTail is how much of the last plain output is remembered.
	maxTail = 4 << 10
	// maxBegun bounds the calls that the hook has told of and the output has not.
	maxBegun = 64
	// maxOutput is the size at which plain output becomes a record.
	maxOutput = 32 << 10
	// maxBatch and maxBatchBytes are the number and the size of records at which
	// a batch goes to disk.
	maxBatch      = 256
	maxBatchBytes = 4 << 20
	// outputDelay is how long plain output waits for more of it.
	outputDelay = 200 * time.Millisecond
)

var (
	errStale = errors.New("the shim has connected anew")
	errOrder = errors.New("the shim left out a line")
)

// Config says what is recorded, and where.
type Config struct {
	Spool *spool.Spool
	// Sync puts what the agent wrote on disk.
	Sync    func() error
	Attempt int64
	// NewParser makes a parser for lines that follow those of which an earlier
	// process knew this session of the agent's own, if it knew any.
	NewParser func(known agentstate.State) agent.Parser
	// Mask keeps the values of Secrets out of the records; nil if there are none.
	Mask *mask.Masker
	// Price makes a usage of tokens.
	Price func(agent.Tokens) *daemonv1.Usage
	// LongPath is the file of a line too long to be held in memory.
	LongPath string
	Problems Problems
	Log      logr.Logger
}

// Problems hears of what keeps output from being recorded.
type Problems interface {
	// Recorded is told why nothing can be recorded, and with nil that it can again.
	Recorded(err error)
}

// Call is a tool call as the agent's output tells of it, before its Secrets are masked.
type Call struct {
	ID, Name, Input string
	// Cut says that the input was too long to be held, and is not all here.
	Cut bool
}

// Recorder turns the agent's output into records in the spool. A line counts as
// recorded only when all that it says is on disk: one that begins a message
// whose end is yet to come does not.
type Recorder struct {
	spool     *spool.Spool
	sync      func() error
	attempt   int64
	newParser func(known agentstate.State) agent.Parser
	mask      *mask.Masker
	price     func(agent.Tokens) *daemonv1.Usage
	longPath  string
	problems  Problems
	log       logr.Logger

	mu      sync.Mutex
	epoch   int // of the connection that may add lines
	session string
	taken   int64        // last line or piece of one taken in
	whole   int64        // last one up to which lines are whole, or in the long line's file
	piece   []byte       // the beginning of a line that goes on
	long    *longLine    // a line that is too long to be held
	parser  agent.Parser // has read what is taken
	base    agent.Parser // has read what is recorded; nil in a new process
	before  agent.Parser // has read what came before the pending message
	pending bool         // a message is not whole yet
	waiting int          // bytes of lines since it began

	output strings.Builder
	since  time.Time // when the output began to wait

	batch   []*daemonv1.Record
	size    int   // of the batch in bytes
	ready   int   // records of the batch that may go to disk
	reached int64 // last line that the ready records reach to
	marked  int64 // last line that the spool reaches to

	state agentstate.State // as of the spool's mark
	// killed are results of tools that were killed, held back until the agent
	// goes on: it may be the agent that is being killed, tool first.
	killed []*daemonv1.Message
	heard  time.Time // when a line was last taken in
	tail   string    // the last of the plain output

	calls   []Call   // seen by the call under way, and not returned yet
	open    []string // calls without a result
	last    string   // the call that was answered last
	results int      // calls answered, of all records counted
	answers int      // calls answered since the last checkpoint
	records int      // records since the last checkpoint
}

// New makes the recorder of an attempt. It takes no lines before Attach.
func New(cfg Config) *Recorder {
	return &Recorder{spool: cfg.Spool, sync: cfg.Sync, attempt: cfg.Attempt, newParser: cfg.NewParser, mask: cfg.Mask,
		price: cfg.Price, longPath: cfg.LongPath, problems: cfg.Problems, log: cfg.Log}
}

// Attach makes a new connection of a session the only one that may add lines,
// and returns the last line that is recorded. What an older connection had left
// unrecorded is forgotten: it comes again. The lines before first never do: they
// were acknowledged, and where the spool knows nothing of them its end was damaged.
func (r *Recorder) Attach(session string, first int64) (epoch int, line int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.epoch++
	if r.session != session || r.base == nil {
		r.state = agentstate.State{}
		if r.session = session; r.spool.Mark().Session == session {
			r.state = agentstate.Decode(r.spool.Mark().State)
		}
		r.base = r.newParser(r.state)
	}
	r.taken = 0
	if m := r.spool.Mark(); m.Session == session {
		r.taken = m.Line
	}
	r.taken = max(r.taken, first-1)
	r.whole, r.reached, r.marked = r.taken, r.taken, r.taken
	r.parser, r.before, r.pending, r.waiting = r.base.Clone(), nil, false, 0
	r.piece, r.batch, r.size, r.ready, r.killed = nil, nil, 0, 0, nil
	r.heard = time.Now()
	r.output.Reset()
	r.long.close()
	if r.long, err = resumeLong(r.longPath, session, r.taken); err != nil {
		return 0, 0, err
	}
	return r.epoch, r.taken, nil
}

// Add takes a line in, and returns the tool calls that it tells of. It is not
// recorded before Commit or Flush.
func (r *Recorder) Add(ctx context.Context, epoch int, l wire.Line) ([]Call, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.addLocked(ctx, epoch, l)
	return r.takeCalls(), err
}

// takeCalls returns each call once.
func (r *Recorder) takeCalls() []Call {
	seen := r.calls
	r.calls = nil
	return seen
}

func (r *Recorder) addLocked(ctx context.Context, epoch int, l wire.Line) error {
	switch {
	case epoch != r.epoch:
		return errStale
	case l.Number <= r.taken:
		return nil
	case l.Number != r.taken+1:
		return errOrder
	}
	r.taken, r.heard = l.Number, time.Now()
	if r.inLong() || len(r.piece)+len(l.Data) > maxLine {
		return r.addLong(ctx, l)
	}
	r.piece = append(r.piece, l.Data...)
	if !l.More {
		r.whole = r.taken
		r.line(r.piece, nil)
		r.piece = r.piece[:0]
	}
	return nil
}

// line reads a whole line. mend, if it is not nil, completes its messages.
func (r *Recorder) line(line []byte, mend func(*daemonv1.Message)) {
	if !r.pending {
		r.before = r.parser.Clone()
	}
	r.admitKilled()
	items := r.parser.Line(line)
	r.waiting += len(line)
	r.items(items, mend)
	r.pending = r.parser.Pending() || len(r.killed) > 0
	if r.pending && r.waiting > maxPending {
		// The shim keeps no more: what is there of the message is recorded.
		r.admitKilled()
		r.items(r.parser.End(), nil)
		r.pending = false
	}
	r.markReady()
}

// markReady notes how far everything is in records.
func (r *Recorder) markReady() {
	if r.pending {
		return
	}
	r.waiting, r.ready = 0, len(r.batch)
	if r.output.Len() == 0 {
		r.reached = r.whole
	}
}

func (r *Recorder) items(items []agent.Item, mend func(*daemonv1.Message)) {
	for _, item := range items {
		switch {
		case item.Message != nil && mend == nil && agent.WasKilled(item.Message.GetToolResult().GetOutput()):
			r.killed = append(r.killed, item.Message)
		case item.Message != nil:
			r.message(item.Message, mend)
		case item.Usage != nil:
			r.usage(item)
		case item.Output != nil && mend != nil:
			r.message(&daemonv1.Message{Role: daemonv1.Role_ROLE_OUTPUT, Raw: *item.Output}, mend)
		case item.Output != nil:
			r.plain(*item.Output)
		}
	}
}

// admitKilled takes results for what they say: the agent has gone on after them.
func (r *Recorder) admitKilled() {
	for _, m := range r.killed {
		r.message(m, nil)
	}
	r.killed = nil
}

func (r *Recorder) message(m *daemonv1.Message, mend func(*daemonv1.Message)) {
	if mend != nil {
		mend(m)
	}
	if call := m.GetToolCall(); call != nil {
		r.calls = append(r.calls, Call{ID: call.GetId(), Name: call.GetName(), Input: call.GetInput(), Cut: call.GetInputPieces() != nil})
	}
	r.masked(m)
	shortenIDs(m)
	r.structured(&daemonv1.Record{Body: &daemonv1.Record_Message{Message: m}})
}

// shortenIDs bounds what an agent calls its calls and tools: these are remembered
// here and in the store for as long as a call is not answered.
func shortenIDs(m *daemonv1.Message) {
	if call := m.GetToolCall(); call != nil {
		call.Id, call.Name = conversation.ShortID(call.Id), conversation.ShortID(call.Name)
	}
	if result := m.GetToolResult(); result != nil {
		result.CallId = conversation.ShortID(result.CallId)
	}
}

// masked masks a message. The shim has masked the line, but a line may write a
// value in another way than the message that it makes.
func (r *Recorder) masked(m *daemonv1.Message) {
	if r.mask == nil {
		return
	}
	for _, text := range []*string{&m.Text, &m.Raw} {
		*text = r.mask.Text(*text)
	}
	if call := m.GetToolCall(); call != nil {
		call.Id, call.Name, call.Input = r.mask.Text(call.Id), r.mask.Text(call.Name), r.mask.Text(call.Input)
	}
	if result := m.GetToolResult(); result != nil {
		result.CallId, result.Output = r.mask.Text(result.CallId), r.mask.Text(result.Output)
	}
}

// structured makes a record of the line just taken in, after the output before it.
func (r *Recorder) structured(rec *daemonv1.Record) {
	r.endOutput()
	r.push(rec)
}

// plain adds a line to the output that waits.
func (r *Recorder) plain(text string) {
	if r.output.Len() == 0 {
		r.since = time.Now()
	}
	text = r.mask.Text(text)
	r.tail += text + "\n"
	r.tail = r.tail[max(0, len(r.tail)-maxTail):]
	r.output.WriteString(text)
	r.output.WriteByte('\n')
	if r.output.Len() >= maxOutput {
		r.endOutput()
	}
}

// endOutput makes a record of the output that waits.
func (r *Recorder) endOutput() {
	if r.output.Len() == 0 {
		return
	}
	m := &daemonv1.Message{Role: daemonv1.Role_ROLE_OUTPUT, Text: r.output.String()}
	r.output.Reset()
	r.push(&daemonv1.Record{Body: &daemonv1.Record_Message{Message: m}})
}

func (r *Recorder) push(rec *daemonv1.Record) {
	rec.Time, rec.Attempt = timestamppb.Now(), r.attempt
	r.batch = append(r.batch, rec)
	r.size += proto.Size(rec)
}

// Full reports whether the batch should go to disk before more is added.
func (r *Recorder) Full() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.batch) >= maxBatch || r.size >= maxBatchBytes
}

// Commit puts whole records on disk and returns the last line they reach to.
// Output that may grow stays, unless it has waited long enough.
func (r *Recorder) Commit(ctx context.Context) (line int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.since) >= outputDelay {
		r.endOutput()
		r.markReady()
	}
	if err := r.syncLong(ctx, false); err != nil {
		return r.marked, err
	}
	return r.write(ctx)
}

// Flush puts everything on disk but a line or a message that is not whole.
func (r *Recorder) Flush(ctx context.Context) (line int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.flushLocked(ctx)
}

func (r *Recorder) flushLocked(ctx context.Context) (line int64, err error) {
	if !r.pending {
		r.endOutput()
		r.markReady()
	}
	if err := r.syncLong(ctx, true); err != nil {
		return r.marked, err
	}
	return r.write(ctx)
}

// End puts everything on disk, the output having ended, and returns the tool calls
// that only its end tells of. If the agent was killed, a tool that was killed did not
// answer: its call was cut.
func (r *Recorder) End(ctx context.Context, killed bool) (calls []Call, line int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	line, err = r.endLocked(ctx, killed)
	return r.takeCalls(), line, err
}

func (r *Recorder) endLocked(ctx context.Context, killed bool) (line int64, err error) {
	if r.parser == nil {
		return r.marked, nil // nobody ever connected
	}
	if r.inLong() {
		if err := r.finishLong(ctx, nil); err != nil {
			return r.marked, err
		}
	}
	r.whole = r.taken
	if len(r.piece) > 0 {
		r.line(r.piece, nil)
		r.piece = nil
	}
	if killed {
		r.killed = nil
	}
	r.admitKilled()
	r.items(r.parser.End(), nil)
	r.pending = false
	return r.flushLocked(ctx)
}

// Interrupt answers the calls that the agent left open when it ended.
func (r *Recorder) Interrupt(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range r.open {
		r.push(&daemonv1.Record{Body: &daemonv1.Record_Message{Message: agent.Interrupted(id)}})
	}
	for _, call := range r.state.Begun {
		for _, m := range call.Messages() {
			r.push(&daemonv1.Record{Body: &daemonv1.Record_Message{Message: m}})
		}
	}
	r.ready = len(r.batch)
	_, err := r.write(ctx)
	return err
}
