// Package record turns the agent's output into records on the volume.
//
// It promises:
//
//   - A line counts as recorded only when everything in it is on disk, and the work that
//     it reports was synced to disk before it. A line that is sent again is recorded once,
//     whatever was killed in between.
//   - A line may be of any length: memory stays bounded, and nothing is left out.
//   - No record contains the value of a Secret.
//   - That the answer to a call of a supervisor's tool has reached the agent is recorded in
//     the write that records the answer, once.
//
// The package knows neither the shim nor checkpoints: it returns to its caller which lines
// are recorded, and which tool calls are in them.
package record

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/broadcast"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/daemon/agentstate"
	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const (
	// maxLine is the length, in bytes, up to which a line is held in memory.
	maxLine = 1 << 20
	// maxPending bounds, in bytes, the output that waits for the rest of a message that is
	// being streamed. It is less than the shim keeps.
	maxPending = 4 << 20
	// maxTail bounds, in bytes, how much of the last plain output is kept for LastOutput.
	maxTail = 4 << 10
	// maxBegun bounds the calls that the hook has reported and the output has not.
	maxBegun = 64
	// maxOutput is the size, in bytes, at which plain output becomes a record.
	maxOutput = 32 << 10
	// maxBatch and maxBatchBytes are the number of records and their size at which a batch
	// is written to disk.
	maxBatch      = 256
	maxBatchBytes = 4 << 20
	// outputDelay is how long plain output waits for more output to join it.
	outputDelay = 200 * time.Millisecond
)

var (
	errStale = errors.New("the shim has reconnected")
	errOrder = errors.New("the shim skipped a line")
)

// Config configures a Recorder.
type Config struct {
	// Spool receives the records.
	Spool *spool.Spool
	// Sync syncs what the agent wrote to disk.
	Sync func() error
	// Attempt is the number of the attempt, which each record carries.
	Attempt int64
	// NewParser returns a parser for the lines that follow a recorded state, which is
	// empty if nothing of the session is recorded.
	NewParser func(known agentstate.State) agent.Parser
	// Mask keeps the values of Secrets out of the records; nil if there are none.
	Mask *mask.Masker
	// Price computes the usage, with its cost, of tokens.
	Price func(agent.Tokens) *daemonv1.Usage
	// LongPath is the file for a line that is too long to be held in memory.
	LongPath string
	// Delivered is called once it is on disk that the answer to a call of a supervisor's tool has reached
	// the agent; it may be nil.
	Delivered func(call string)
	// Problems is notified when output cannot be recorded.
	Problems Problems
	// Log is the daemon's log.
	Log logr.Logger
}

// Problems is notified of what prevents output from being recorded.
type Problems interface {
	// Recorded is called with the reason why nothing can be recorded, and with nil when
	// recording works again.
	Recorded(err error)
}

// Call is a tool call in the agent's output, before its Secrets are masked.
type Call struct {
	// ID, Name and Input are what the agent wrote; Input is JSON.
	ID, Name, Input string
	// Cut is set if Input is only the beginning, since the whole was too long to be held.
	Cut bool
}

// Recorder turns the agent's output into records in the spool. A line counts as recorded
// only when everything in it is on disk: a line that begins an unfinished message does not.
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
	taken   int64        // last line, or piece of one, that was added
	whole   int64        // last one that completes a line, or is synced to the long line's file
	piece   []byte       // the pieces added so far of an unfinished line
	long    *longLine    // a line that is too long to be held in memory
	parser  agent.Parser // has parsed the lines added
	base    agent.Parser // has parsed the lines recorded; nil in a new process
	before  agent.Parser // has parsed the lines before the pending message
	pending bool         // a message is unfinished
	waiting int          // bytes of the lines since the pending message began

	output strings.Builder // plain output not yet in a record
	since  time.Time       // when the output began to wait

	batch   []*daemonv1.Record
	size    int   // of the batch, in bytes
	ready   int   // number of records of the batch that may be written
	reached int64 // last line that the ready records cover
	marked  int64 // last line that the spool's mark covers

	state agentstate.State // as of the spool's mark
	// killed are the results of killed tools, held back until the agent prints more: the
	// agent itself may be about to be killed, after its tool.
	killed    []*daemonv1.Message
	lastAdded time.Time // when a line was last added
	tail      string    // the end of the plain output

	calls []Call   // found by the current call, and not returned yet
	open  []string // calls without a result
	// answered is announced when one of these has its result.
	answered broadcast.Change
	last     string // the call that was answered last
	results  int    // calls answered in all records counted
	made     int    // calls in all records counted
	settled  bool   // the newest message is a result
	answers  int    // calls answered since the last checkpoint
	records  int    // records since the last checkpoint

	delivered delivered
}

// New returns the recorder of an attempt. Attach must be called before Add.
func New(cfg Config) *Recorder {
	return &Recorder{spool: cfg.Spool, sync: cfg.Sync, attempt: cfg.Attempt, newParser: cfg.NewParser, mask: cfg.Mask,
		price: cfg.Price, longPath: cfg.LongPath, problems: cfg.Problems, log: cfg.Log, delivered: delivered{tell: cfg.Delivered}}
}

// Attach makes a new connection the only one that may add lines, and returns the last line
// that is recorded. It forgets what an older connection left unrecorded, since the shim
// sends that again. The lines before first were acknowledged and are not sent again; if
// the spool does not have them, its end was damaged.
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
	r.lastAdded = time.Now()
	r.output.Reset()
	r.long.close()
	if r.long, err = resumeLong(r.longPath, session, r.taken); err != nil {
		return 0, 0, err
	}
	return r.epoch, r.taken, nil
}

// Add adds a line and returns the tool calls in it. The line is not recorded before Commit
// or Flush. A line longer than a piece is an exception: it first writes everything before
// it to disk, so if the volume is full, calls in what the parser still held return only
// once there is room.
func (r *Recorder) Add(ctx context.Context, epoch int, l wire.Line) ([]Call, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.addLocked(ctx, epoch, l)
	return r.takeCalls(), err
}

// takeCalls returns the calls found since it was last called.
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
	r.taken, r.lastAdded = l.Number, time.Now()
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

// line parses a whole line. mend, if not nil, completes its messages.
func (r *Recorder) line(line []byte, mend func(*daemonv1.Message)) {
	if !r.pending {
		r.before = r.parser.Clone()
	}
	r.acceptKilled()
	items := r.parser.Line(line)
	r.waiting += len(line)
	r.items(items, mend)
	r.pending = r.parser.Pending() || len(r.killed) > 0
	if r.pending && r.waiting > maxPending {
		// The shim keeps no more, so the beginning of the message is recorded.
		r.acceptKilled()
		r.items(r.parser.End(), nil)
		r.pending = false
	}
	r.markReady()
}

// markReady marks the batch as ready to be written, unless a message is unfinished.
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

// acceptKilled records the results held back in killed, since the agent has survived them.
func (r *Recorder) acceptKilled() {
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
	r.shown(m)
}

// shortenIDs bounds the ids of calls and the names of tools, which are kept in memory and
// in the history store until the call is answered.
func shortenIDs(m *daemonv1.Message) {
	if call := m.GetToolCall(); call != nil {
		call.Id, call.Name = conversation.ShortID(call.Id), conversation.ShortID(call.Name)
	}
	if result := m.GetToolResult(); result != nil {
		result.CallId = conversation.ShortID(result.CallId)
	}
}

// masked masks a message. The shim has masked the line, but a value may be written
// differently there than in the message parsed from it.
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

// structured adds a record, after one for the plain output before it.
func (r *Recorder) structured(rec *daemonv1.Record) {
	r.endOutput()
	r.push(rec)
}

// plain adds a line to the plain output.
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

// endOutput adds a record for the plain output so far.
func (r *Recorder) endOutput() {
	if r.output.Len() == 0 {
		return
	}
	m := &daemonv1.Message{Role: daemonv1.Role_ROLE_OUTPUT, Text: r.output.String()}
	r.output.Reset()
	r.push(&daemonv1.Record{Body: &daemonv1.Record_Message{Message: m}})
}

func (r *Recorder) push(rec *daemonv1.Record) {
	r.batch = append(r.batch, r.stamped(rec))
	r.size += proto.Size(rec)
}

// Full reports whether the batch should be written before more lines are added.
func (r *Recorder) Full() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.batch) >= maxBatch || r.size >= maxBatchBytes
}

// Commit writes the records of whole messages to disk and returns the last line recorded.
// Plain output that may still grow is kept back, unless it has waited for outputDelay.
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

// Flush writes everything to disk except an unfinished line or message, and returns the
// last line recorded.
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

// End writes everything to disk at the end of the output, and returns the tool calls that
// were found only there. If the agent was killed, the result of a tool that was killed
// with it is dropped, so that its call counts as interrupted.
func (r *Recorder) End(ctx context.Context, killed bool) (calls []Call, line int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	line, err = r.endLocked(ctx, killed)
	return r.takeCalls(), line, err
}

func (r *Recorder) endLocked(ctx context.Context, killed bool) (line int64, err error) {
	if r.parser == nil {
		return r.marked, nil // the shim never connected
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
	r.acceptKilled()
	r.items(r.parser.End(), nil)
	r.pending = false
	return r.flushLocked(ctx)
}

// Interrupt records a result, marked as interrupted, for each call that was open when the
// agent ended.
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
