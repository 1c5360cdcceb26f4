// Package daemontest provides, for tests of the daemon, a server that keeps history in
// memory by the rules of the real one, and git repositories over HTTP.
package daemontest

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/internal/broadcast"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/daemonapi/v1/daemonv1connect"
	"github.com/clew-dev/clew/internal/history"
)

// Server is the gateway with a history in memory. A caller is the task and attempt that its
// token names; see Token.
type Server struct {
	URL string

	mu      sync.Mutex
	tasks   map[string]*Task
	down    bool
	old     bool           // of a version that does not know SearchHistory and CallTool
	refusal *connect.Error // answers every Append; nil for none
	// verify answers VerifyCheckpoint; nil if nothing is verified.
	verify func(checkpoint int64) *daemonv1.VerifyCheckpointResponse
	// answer answers the calls of a supervisor's tools.
	answer  func(*daemonv1.CallToolRequest) *daemonv1.CallToolResponse
	changed broadcast.Change
	asked   []*daemonv1.Command
}

// Task is what the server knows of a task.
type Task struct {
	Attempt int64
	// SnapshotEvery is what the newest attempt asked for.
	SnapshotEvery int64
	Records       []*daemonv1.Record
	Active        []*daemonv1.ConversationEntry
	Checkpoints   map[int64]*daemonv1.CheckpointRecord
	Operations    []string
	// Moves are the outcomes of moves, Lost how many records gaps stand for.
	Moves []*daemonv1.MoveResult
	Lost  int64
	// gone are the checkpoints that the gitstore was reported to have lost.
	gone map[int64]bool
	// Problem is what the daemon last reported; Reports is how often it reported.
	Problem *daemonv1.Problem
	Reports int
	// Reported are the reasons of all problems that it ever reported.
	Reported []string
	// Verified are the checkpoints that daemons had verified.
	Verified []int64
	// Live are the answers to AskLive.
	Live []*daemonv1.ReportLiveRequest
	// Calls are the calls of tools that had an effect or were refused, and Reads how often others
	// were made.
	Calls []*ToolCall
	Reads int

	// limits are the budgets that the server tells of; nil for a server that knows none.
	limits    []*daemonv1.Budget
	began     bool
	inherited []*daemonv1.ConversationEntry
	// startedOver is set if the last move led to where the task's own conversation begins.
	// repeated has the entries that came first after such a move in a task that has a
	// prompt of its own: one whose very first entry, by firstRole, was not the agent's.
	startedOver bool
	firstRole   daemonv1.Role
	repeated    map[*daemonv1.ConversationEntry]bool
	// sequences are the sequences of the records that made the entries, except inherited
	// ones.
	sequences map[*daemonv1.ConversationEntry]int64
	positions map[int64][]*daemonv1.ConversationEntry
}

// NewServer starts a server that ends with the test.
func NewServer(t testing.TB) *Server {
	s := &Server{tasks: map[string]*Task{}}
	mux := http.NewServeMux()
	mux.Handle(daemonv1connect.NewDaemonServiceHandler(&service{s}))
	h := httptest.NewServer(mux)
	s.URL = h.URL
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return s
}

// copy returns a server with the same history.
func (s *Server) copy(t testing.TB) *Server {
	c := NewServer(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, task := range s.tasks {
		k := *task
		k.Records, k.Operations = slices.Clone(task.Records), slices.Clone(task.Operations)
		k.Moves, k.sequences, k.repeated = slices.Clone(task.Moves), maps.Clone(task.sequences), maps.Clone(task.repeated)
		k.gone = maps.Clone(task.gone)
		k.Checkpoints, k.positions = map[int64]*daemonv1.CheckpointRecord{}, maps.Clone(task.positions)
		for n, checkpoint := range task.Checkpoints {
			k.Checkpoints[n] = proto.CloneOf(checkpoint)
		}
		c.tasks[uid] = &k
	}
	return c
}

// RollBack restores what is known of a task to the moment when the server had its records
// through the given one, like an older copy of the store.
func (s *Server) RollBack(uid string, last int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.task(uid)
	delete(s.tasks, uid)
	task := s.task(uid)
	task.Attempt, task.SnapshotEvery, task.began = was.Attempt, was.SnapshotEvery, was.began
	task.inherited, task.Active = was.inherited, was.inherited
	for _, r := range was.Records {
		if r.GetSequence() <= last {
			task.add(r)
		}
	}
	s.changed.Announce()
}

// Token writes the token of a pod of a task to a file and returns its path.
func Token(t testing.TB, uid string, attempt int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, fmt.Appendf(nil, "%s/%d\n", uid, attempt), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// SetDown makes the server answer only Unavailable, or work again.
func (s *Server) SetDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
	s.changed.Announce()
}

// Forget makes the server know nothing of a task, like a copy of the store that is older
// than the task.
func (s *Server) Forget(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tasks, uid)
	s.changed.Announce()
}

// Refuse makes the server refuse records with this error, or take them again if it is nil.
func (s *Server) Refuse(why *connect.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusal = why
	s.changed.Announce()
}

// Verify makes the server answer what daemons have verified.
func (s *Server) Verify(answer func(checkpoint int64) *daemonv1.VerifyCheckpointResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verify = answer
}

// Ask requests a checkpoint from the daemons that listen for commands, until it is taken.
func (s *Server) Ask(take *daemonv1.TakeCheckpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, &daemonv1.Command{Command: &daemonv1.Command_TakeCheckpoint{TakeCheckpoint: take}})
	s.changed.Announce()
}

// Release ends the hold of a set for the daemons that listen for commands.
func (s *Server) Release(set string) { s.release(&daemonv1.ReleaseHold{Set: set}) }

// Drop ends the hold of a set that is gone.
func (s *Server) Drop(set string) { s.release(&daemonv1.ReleaseHold{Set: set, Gone: true}) }

func (s *Server) release(hold *daemonv1.ReleaseHold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, &daemonv1.Command{Command: &daemonv1.Command_ReleaseHold{ReleaseHold: hold}})
	s.changed.Announce()
}

// AnswerRequest sends the answer to a request to the daemons that listen for commands.
func (s *Server) AnswerRequest(answer *daemonv1.AnswerRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, &daemonv1.Command{Command: &daemonv1.Command_AnswerRequest{AnswerRequest: answer}})
	s.changed.Announce()
}

// AskLive requests the files as they are from the daemons that listen for commands.
func (s *Server) AskLive(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, &daemonv1.Command{Command: &daemonv1.Command_PublishLive{PublishLive: &daemonv1.PublishLive{Id: id}}})
	s.changed.Announce()
}

// Inspect calls f with what is known of a task, while nothing changes.
func (s *Server) Inspect(uid string, f func(*Task)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.task(uid))
}

// Until waits until f returns true for a task. It calls f after each change rather than at
// intervals, so that f sees a state that lasts for an instant.
func (s *Server) Until(t testing.TB, what, uid string, f func(*Task) bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		s.mu.Lock()
		ok, changed := f(s.task(uid)), s.changed.Next()
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			s.Inspect(uid, func(k *Task) {
				t.Fatalf("waited too long until %s; the server has %d records, %d checkpoints, the latest is %v, the problem is %v, reported were %v", what, len(k.Records), len(k.Checkpoints), k.Latest(), k.Problem, k.Reported)
			})
		}
	}
}

func (s *Server) task(uid string) *Task {
	if s.tasks[uid] == nil {
		s.tasks[uid] = &Task{Checkpoints: map[int64]*daemonv1.CheckpointRecord{}, positions: map[int64][]*daemonv1.ConversationEntry{},
			sequences: map[*daemonv1.ConversationEntry]int64{}, repeated: map[*daemonv1.ConversationEntry]bool{}}
	}
	return s.tasks[uid]
}

// Latest returns the newest checkpoint, nil if there is none.
func (t *Task) Latest() *daemonv1.CheckpointRecord {
	var latest *daemonv1.CheckpointRecord
	for _, c := range t.Checkpoints {
		if latest == nil || c.GetNumber() > latest.GetNumber() {
			latest = c
		}
	}
	return latest
}

// Open lists the calls of the active branch that have no result.
func (t *Task) Open() []string {
	var open []string
	for _, e := range t.Active {
		if c := e.GetMessage().GetToolCall(); c != nil {
			open = append(open, c.GetId())
		}
		if r := e.GetMessage().GetToolResult(); r != nil {
			if i := slices.Index(open, r.GetCallId()); i >= 0 {
				open = slices.Delete(open, i, i+1)
			}
		}
	}
	return open
}

// Lines renders the active branch, one line per message.
func (t *Task) Lines() []string {
	out := []string{}
	for _, e := range t.Active {
		out = append(out, Line(e.GetMessage()))
	}
	return out
}

// Line renders a message for comparison in tests.
func Line(m *daemonv1.Message) string {
	role := strings.ToLower(strings.TrimPrefix(m.GetRole().String(), "ROLE_"))
	switch {
	case m.GetToolCall() != nil:
		return "call " + m.GetToolCall().GetId()
	case m.GetToolResult().GetInterrupted():
		return "interrupted " + m.GetToolResult().GetCallId()
	case m.GetToolResult() != nil:
		return "result " + m.GetToolResult().GetCallId()
	case m.GetText() == "" && m.GetRaw() != "":
		return "raw " + m.GetRaw()
	}
	return role + " " + m.GetText()
}

// Last returns the sequence through which there are records.
func (t *Task) Last() int64 {
	if len(t.Records) == 0 {
		return 0
	}
	newest := t.Records[len(t.Records)-1]
	return max(newest.GetSequence(), newest.GetGap().GetThrough())
}

// lastID returns the id of the newest record.
func (t *Task) lastID() uint64 {
	if len(t.Records) == 0 {
		return 0
	}
	return t.Records[len(t.Records)-1].GetId()
}

// add adds one record.
func (t *Task) add(r *daemonv1.Record) {
	t.Records = append(t.Records, r)
	if m := r.GetMove(); m != nil {
		t.moveOrRefuse(r.GetSequence(), m)
	}
	if g := r.GetGap(); g != nil {
		n := g.GetThrough() - r.GetSequence() + 1
		t.Lost += n
		r = &daemonv1.Record{Sequence: r.GetSequence(), Time: r.GetTime(), Body: &daemonv1.Record_Message{Message: &daemonv1.Message{
			Role: daemonv1.Role_ROLE_SYSTEM, Text: fmt.Sprintf("gap of %d", n)}}}
	}
	if e := r.GetEvent(); e.GetReason() == "CheckpointLost" {
		n, _ := strconv.ParseInt(e.GetDetails()["checkpoint"], 10, 64)
		if c := t.Checkpoints[n]; c != nil {
			c.Durable = false
			if t.gone == nil {
				t.gone = map[int64]bool{}
			}
			t.gone[n] = true
		}
	}
	t.deliver(r.GetEvent().GetDetails()[history.ToolCallDelivered])
	if m := r.GetMessage(); m != nil {
		entry := &daemonv1.ConversationEntry{Position: int64(len(t.Active) + 1), Time: r.GetTime(), Message: m}
		t.sequences[entry] = r.GetSequence()
		if t.firstRole == daemonv1.Role_ROLE_UNSPECIFIED {
			t.firstRole = m.GetRole()
		}
		if t.startedOver && len(t.Active) == len(t.inherited) {
			t.repeated[entry] = t.firstRole == daemonv1.Role_ROLE_USER || t.firstRole == daemonv1.Role_ROLE_SYSTEM
		}
		t.Active = append(t.Active[:len(t.Active):len(t.Active)], entry)
	}
	if c := r.GetCheckpoint(); c != nil {
		if known := t.Checkpoints[c.GetNumber()]; known != nil {
			known.Durable = known.GetDurable() || c.GetDurable()
			if c.GetDurable() {
				delete(t.gone, c.GetNumber())
			}
			return
		}
		c = proto.CloneOf(c)
		at := t.Active
		if after := c.GetAfterSequence(); after > 0 && after < r.GetSequence() {
			at = t.after(after)
		}
		c.Position = &daemonv1.Position{Position: int64(len(at))}
		t.Checkpoints[c.GetNumber()] = c
		t.positions[c.GetNumber()] = at
	}
}

// loseInherited records that the conversation begins without what it would have inherited.
func (t *Task) loseInherited(n int64) {
	t.Lost += n
	t.firstRole = daemonv1.Role_ROLE_SYSTEM
	t.Active = append(t.Active, &daemonv1.ConversationEntry{Position: 1, Time: timestamppb.Now(), Message: &daemonv1.Message{
		Role: daemonv1.Role_ROLE_SYSTEM, Text: fmt.Sprintf("gap of %d", n)}})
}

// moveOrRefuse carries out a move, once, or records that it was refused.
func (t *Task) moveOrRefuse(sequence int64, m *daemonv1.Move) {
	if slices.Contains(t.Operations, m.GetOperationId()) {
		return
	}
	if m.GetAfterSequence() >= sequence {
		m = proto.CloneOf(m)
		m.AfterSequence = 0 // the record is of a history that is lost
	}
	if err := t.move(m); err != nil {
		t.note(&daemonv1.MoveResult{OperationId: m.GetOperationId(), Refused: err.Error(), Position: t.position()})
	}
}

func (t *Task) note(result *daemonv1.MoveResult) {
	t.Moves = slices.DeleteFunc(t.Moves, func(r *daemonv1.MoveResult) bool { return r.GetOperationId() == result.GetOperationId() })
	t.Moves = append(t.Moves, result)
}

// numbers lists the checkpoints for which which is true, if they are asked for.
func (t *Task) numbers(asked bool, which func(*daemonv1.CheckpointRecord) bool) (numbers []int64) {
	for n, c := range t.Checkpoints {
		if asked && which(c) {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers
}

func (t *Task) position() *daemonv1.Position {
	return &daemonv1.Position{Position: int64(len(t.Active))}
}

// after returns the conversation as it was after a record, but not before a prompt that was
// recorded again when the task started over.
func (t *Task) after(sequence int64) []*daemonv1.ConversationEntry {
	n := slices.IndexFunc(t.Active, func(e *daemonv1.ConversationEntry) bool { return t.sequences[e] > sequence })
	if n < 0 {
		return t.Active
	}
	if t.repeated[t.Active[n]] && t.Active[n].GetMessage().GetRole() == daemonv1.Role_ROLE_USER {
		n++
	}
	return t.Active[:n]
}

// move carries out an operation that was not carried out before.
func (t *Task) move(m *daemonv1.Move) error {
	if !m.GetKeepPosition() {
		to, ok := t.positions[m.GetCheckpoint()]
		if m.GetCheckpoint() == 0 {
			to, ok = t.inherited, true
		}
		if m.GetAnew() {
			to = nil
		}
		at := m.GetPosition()
		byPosition := at != 0 || !ok
		if after := m.GetAfterSequence(); after != 0 && byPosition {
			to, ok, at = t.after(after), true, 0
		}
		if !ok {
			return connect.NewError(connect.CodeNotFound, errors.New("no such checkpoint"))
		}
		if at != 0 {
			if at > int64(len(t.Active)) {
				return connect.NewError(connect.CodeInvalidArgument, errors.New("no such position"))
			}
			to = t.Active[:at]
		}
		t.Active, t.startedOver = to, m.GetCheckpoint() == 0 && m.GetPosition() == 0
	}
	t.Operations = append(t.Operations, m.GetOperationId())
	t.note(&daemonv1.MoveResult{OperationId: m.GetOperationId(), Position: t.position()})
	return nil
}
