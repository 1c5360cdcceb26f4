package daemontest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// service implements the protocol.
type service struct{ *Server }

// enter identifies the caller and locks the server; the caller of enter unlocks it. The
// task must have begun.
func (s *service) enter(h http.Header) (*Task, int64, error) {
	task, attempt, err := s.admit(h)
	if err == nil && !task.began {
		err = connect.NewError(connect.CodeNotFound, errors.New("begin an attempt first"))
	}
	return task, attempt, err
}

// admit is enter for a task that may not have begun.
func (s *service) admit(h http.Header) (*Task, int64, error) {
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
	task, attempt, err := s.admit(r.Header())
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if src := r.Msg.GetSource(); src.GetIncludeConversation() && !task.began {
		source := s.task(src.GetTaskUid())
		known := source.Checkpoints[src.GetCheckpoint()] != nil
		switch {
		case known:
			task.inherited = source.positions[src.GetCheckpoint()]
		case src.GetMayBeLost():
			task.loseInherited(max(src.GetPosition(), 1))
		default:
			return nil, connect.NewError(connect.CodeNotFound, errors.New("no such checkpoint of the source"))
		}
		task.Active = append(slices.Clone(task.inherited), task.Active...)
	}
	task.Attempt, task.SnapshotEvery = attempt, r.Msg.GetSnapshotEveryMessages()
	task.began = true
	s.changed.Announce()
	return connect.NewResponse(&daemonv1.BeginResponse{
		Attempt: attempt, LastSequence: task.Last(), LastRecordId: task.lastID(), LatestCheckpoint: task.Latest(),
		SequencedMoves: true, Moves: slices.Clone(task.Moves), DurableCheckpoints: task.numbers(r.Msg.GetListDurable(), (*daemonv1.CheckpointRecord).GetDurable),
		LostCheckpoints: task.numbers(r.Msg.GetListDurable(), func(c *daemonv1.CheckpointRecord) bool { return task.gone[c.GetNumber()] }),
		Position:        &daemonv1.Position{Position: int64(len(task.Active))}, CompletedOperations: slices.Clone(task.Operations), OpenToolCalls: task.Open(),
		Budgets: task.budgets(),
	}), nil
}

func (s *service) Append(_ context.Context, r *connect.Request[daemonv1.AppendRequest]) (*connect.Response[daemonv1.AppendResponse], error) {
	task, _, err := s.enter(r.Header())
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if s.refusal != nil {
		return nil, s.refusal
	}
	for _, record := range r.Msg.GetRecords() {
		last := task.Last()
		if record.GetSequence() > last+1 {
			return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("record %d after %d", record.GetSequence(), last))
		}
		id := task.lastID()
		another := id != 0 && record.GetId() != id
		if record.GetSequence() == last && another {
			return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("record %d is another one", last))
		}
		if record.GetSequence() == last+1 {
			task.add(record)
		}
	}
	s.changed.Announce()
	return connect.NewResponse(&daemonv1.AppendResponse{LastSequence: task.Last(), Budgets: task.budgets()}), nil
}

func (s *service) Report(_ context.Context, r *connect.Request[daemonv1.ReportRequest]) (*connect.Response[daemonv1.ReportResponse], error) {
	task, _, err := s.enter(r.Header())
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	task.Problem = r.Msg.GetProblem()
	task.Reports++
	if p := task.Problem; p != nil {
		task.Reported = append(task.Reported, p.GetReason())
	}
	s.changed.Announce()
	return connect.NewResponse(&daemonv1.ReportResponse{}), nil
}

func (s *service) ReportLive(_ context.Context, r *connect.Request[daemonv1.ReportLiveRequest]) (*connect.Response[daemonv1.ReportLiveResponse], error) {
	task, _, err := s.enter(r.Header())
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	task.Live = append(task.Live, r.Msg)
	s.changed.Announce()
	return connect.NewResponse(&daemonv1.ReportLiveResponse{}), nil
}

func (s *service) VerifyCheckpoint(_ context.Context, r *connect.Request[daemonv1.VerifyCheckpointRequest]) (*connect.Response[daemonv1.VerifyCheckpointResponse], error) {
	task, _, err := s.admit(r.Header())
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if uid := r.Msg.GetTaskUid(); uid != "" {
		task = s.task(uid)
	}
	task.Verified = append(task.Verified, r.Msg.GetCheckpoint())
	if s.verify == nil {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("nothing is verified"))
	}
	return connect.NewResponse(s.verify(r.Msg.GetCheckpoint())), nil
}

// SearchHistory finds texts of the active branch that contain the query as it is.
func (s *service) SearchHistory(_ context.Context, r *connect.Request[daemonv1.SearchHistoryRequest]) (*connect.Response[daemonv1.SearchHistoryResponse], error) {
	task, _, err := s.enter(r.Header())
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if s.old {
		return nil, connect.NewError(connect.CodeUnimplemented, errors.New("no such procedure"))
	}
	found := &daemonv1.SearchHistoryResponse{}
	for _, e := range task.Active {
		text := e.GetMessage().GetText()
		before, after, ok := strings.Cut(text, r.Msg.GetQuery())
		if !ok {
			continue
		}
		if len(found.Hits) == int(r.Msg.GetLimit()) {
			found.More = true
			break
		}
		found.Hits = append(found.Hits, &daemonv1.SearchHit{Position: e.GetPosition(), Time: e.GetTime(), Role: "assistant",
			Snippet: before + "\uE000" + r.Msg.GetQuery() + "\uE001" + after})
	}
	return connect.NewResponse(found), nil
}

func (s *service) MoveConversation(_ context.Context, r *connect.Request[daemonv1.MoveConversationRequest]) (*connect.Response[daemonv1.MoveConversationResponse], error) {
	task, _, err := s.enter(r.Header())
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	m := r.Msg
	if !slices.Contains(task.Operations, m.GetOperationId()) {
		if err := task.move(&daemonv1.Move{OperationId: m.GetOperationId(), Checkpoint: m.GetCheckpoint(),
			KeepPosition: m.GetKeepPosition(), Position: m.GetPosition()}); err != nil {
			return nil, err
		}
		s.changed.Announce()
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
		var todo []*daemonv1.Command
		if err == nil {
			todo = s.asked[sent:]
			sent = len(s.asked)
		}
		changed := s.changed.Next()
		s.mu.Unlock()
		if err != nil {
			return err
		}
		for _, command := range todo {
			if err := stream.Send(command); err != nil {
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
