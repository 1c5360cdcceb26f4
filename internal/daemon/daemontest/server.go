// Package daemontest gives tests of the daemon a server that keeps history in
// memory by the rules of the real one, and git repositories over HTTP.
package daemontest

import (
	"context"
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

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/daemonapi/v1/daemonv1connect"
)

// Server is the daemon gateway with a history in memory. A caller is the task
// and attempt that its token names; see Token.
type Server struct {
	URL string

	mu      sync.Mutex
	tasks   map[string]*Task
	down    bool
	changed chan struct{}
	asked   []*daemonv1.TakeCheckpoint
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
	// Problem is what the daemon has told of; Reports is how often it told.
	Problem *daemonv1.Problem
	Reports int

	began     bool
	inherited []*daemonv1.ConversationEntry
	positions map[int64][]*daemonv1.ConversationEntry
}

// NewServer starts a server that ends with the test.
func NewServer(t testing.TB) *Server {
	s := &Server{tasks: map[string]*Task{}, changed: make(chan struct{})}
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

// copy is a server with the same history.
func (s *Server) copy(t testing.TB) *Server {
	c := NewServer(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, task := range s.tasks {
		k := *task
		k.Records, k.Operations = slices.Clone(task.Records), slices.Clone(task.Operations)
		k.Checkpoints, k.positions = map[int64]*daemonv1.CheckpointRecord{}, maps.Clone(task.positions)
		for n, checkpoint := range task.Checkpoints {
			k.Checkpoints[n] = proto.CloneOf(checkpoint)
		}
		c.tasks[uid] = &k
	}
	return c
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

// SetDown makes the server answer nothing but Unavailable, or answer again.
func (s *Server) SetDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
	s.announce()
}

// Ask asks the daemons on their streams for a checkpoint, until it is taken.
func (s *Server) Ask(take *daemonv1.TakeCheckpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, take)
	s.announce()
}

// Look gives f what is known of a task, while nothing changes.
func (s *Server) Look(uid string, f func(*Task)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.task(uid))
}

// Until waits until f is true of a task.
func (s *Server) Until(t testing.TB, what, uid string, f func(*Task) bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		s.mu.Lock()
		ok, changed := f(s.task(uid)), s.changed
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("waited too long until %s", what)
		}
	}
}

func (s *Server) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) task(uid string) *Task {
	if s.tasks[uid] == nil {
		s.tasks[uid] = &Task{Checkpoints: map[int64]*daemonv1.CheckpointRecord{}, positions: map[int64][]*daemonv1.ConversationEntry{}}
	}
	return s.tasks[uid]
}

// Latest is the newest checkpoint, nil if there is none.
func (t *Task) Latest() *daemonv1.CheckpointRecord {
	var latest *daemonv1.CheckpointRecord
	for _, c := range t.Checkpoints {
		if latest == nil || c.GetNumber() > latest.GetNumber() {
			latest = c
		}
	}
	return latest
}

// Open lists the calls of the active branch without an answer.
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

// Lines renders the active branch, a line a message.
func (t *Task) Lines() []string {
	out := []string{}
	for _, e := range t.Active {
		out = append(out, Line(e.GetMessage()))
	}
	return out
}

// Line renders a message for a test to compare.
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

// add takes one record in.
func (t *Task) add(r *daemonv1.Record) {
	t.Records = append(t.Records, r)
	if m := r.GetMessage(); m != nil {
		t.Active = append(t.Active[:len(t.Active):len(t.Active)], &daemonv1.ConversationEntry{Position: int64(len(t.Active) + 1), Time: r.GetTime(), Message: m})
	}
	if c := r.GetCheckpoint(); c != nil {
		if known := t.Checkpoints[c.GetNumber()]; known != nil {
			known.Durable = known.GetDurable() || c.GetDurable()
			return
		}
		c = proto.CloneOf(c)
		c.Position = &daemonv1.Position{Position: int64(len(t.Active))}
		t.Checkpoints[c.GetNumber()] = c
		t.positions[c.GetNumber()] = t.Active
	}
}

// service speaks the protocol.
type service struct{ *Server }

// enter identifies the caller and locks the server; the caller unlocks.
func (s *service) enter(h http.Header) (*Task, int64, error) {
	s.mu.Lock()
	if s.down {
		return nil, 0, connect.NewError(connect.CodeUnavailable, errors.New("down"))
	}
	uid, number, ok := strings.Cut(strings.TrimPrefix(h.Get("Authorization"), "Bearer "), "/")
	attempt, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil {
		return nil, 0, connect.NewError(connect.CodeUnauthenticated, errors.New("no token"))
	}
	task := s.task(uid)
	if attempt < task.Attempt {
		return nil, 0, connect.NewError(connect.CodeAborted, errors.New("fenced"))
	}
	return task, attempt, nil
}

func (s *service) Begin(_ context.Context, r *connect.Request[daemonv1.BeginRequest]) (*connect.Response[daemonv1.BeginResponse], error) {
	task, attempt, err := s.enter(r.Header())
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	task.Attempt, task.SnapshotEvery = attempt, r.Msg.GetSnapshotEveryMessages()
	if src := r.Msg.GetSource(); src != nil && !task.began && len(task.Records) == 0 && src.GetIncludeConversation() {
		task.inherited = s.task(src.GetTaskUid()).positions[src.GetCheckpoint()]
		task.Active = task.inherited
	}
	task.began = true
	s.announce()
	return connect.NewResponse(&daemonv1.BeginResponse{
		Attempt: attempt, LastSequence: int64(len(task.Records)), LatestCheckpoint: task.Latest(),
		Position: &daemonv1.Position{Position: int64(len(task.Active))}, CompletedOperations: slices.Clone(task.Operations), OpenToolCalls: task.Open(),
	}), nil
}

func (s *service) Append(_ context.Context, r *connect.Request[daemonv1.AppendRequest]) (*connect.Response[daemonv1.AppendResponse], error) {
	task, _, err := s.enter(r.Header())
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for _, record := range r.Msg.GetRecords() {
		last := int64(len(task.Records))
		if record.GetSequence() > last+1 {
			return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("record %d after %d", record.GetSequence(), last))
		}
		if record.GetSequence() == last+1 {
			task.add(record)
		}
	}
	s.announce()
	return connect.NewResponse(&daemonv1.AppendResponse{LastSequence: int64(len(task.Records))}), nil
}

func (s *service) Report(_ context.Context, r *connect.Request[daemonv1.ReportRequest]) (*connect.Response[daemonv1.ReportResponse], error) {
	task, _, err := s.enter(r.Header())
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	task.Problem = r.Msg.GetProblem()
	task.Reports++
	s.announce()
	return connect.NewResponse(&daemonv1.ReportResponse{}), nil
}

func (s *service) MoveConversation(_ context.Context, r *connect.Request[daemonv1.MoveConversationRequest]) (*connect.Response[daemonv1.MoveConversationResponse], error) {
	task, _, err := s.enter(r.Header())
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	m := r.Msg
	if !slices.Contains(task.Operations, m.GetOperationId()) {
		if !m.GetKeepPosition() {
			to, ok := task.positions[m.GetCheckpoint()]
			if m.GetCheckpoint() == 0 {
				to, ok = task.inherited, true
			}
			if !ok {
				return nil, connect.NewError(connect.CodeNotFound, errors.New("no such checkpoint"))
			}
			if at := m.GetPosition(); at != 0 {
				if at > int64(len(task.Active)) {
					return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("no such position"))
				}
				to = task.Active[:at]
			}
			task.Active = to
		}
		task.Operations = append(task.Operations, m.GetOperationId())
		s.announce()
	}
	return connect.NewResponse(&daemonv1.MoveConversationResponse{Position: &daemonv1.Position{Position: int64(len(task.Active))}}), nil
}

func (s *service) Conversation(_ context.Context, r *connect.Request[daemonv1.ConversationRequest], stream *connect.ServerStream[daemonv1.ConversationResponse]) error {
	task, _, err := s.enter(r.Header())
	var active []*daemonv1.ConversationEntry
	if err == nil {
		active = task.Active
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	for part := range slices.Chunk(active, 7) {
		if err := stream.Send(&daemonv1.ConversationResponse{Entries: part}); err != nil {
			return err
		}
	}
	return nil
}

func (s *service) Commands(ctx context.Context, r *connect.Request[daemonv1.CommandsRequest], stream *connect.ServerStream[daemonv1.Command]) error {
	if err := stream.Send(&daemonv1.Command{}); err != nil {
		return err
	}
	for sent := 0; ; {
		_, _, err := s.enter(r.Header())
		var todo []*daemonv1.TakeCheckpoint
		if err == nil {
			todo = s.asked[sent:]
			sent = len(s.asked)
		}
		changed := s.changed
		s.mu.Unlock()
		if err != nil {
			return err
		}
		for _, take := range todo {
			if err := stream.Send(&daemonv1.Command{Command: &daemonv1.Command_TakeCheckpoint{TakeCheckpoint: take}}); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
