// Package gateway is where the daemons of tasks call in: the handlers of
// daemonapi's DaemonService.
//
// A daemon is known by its pod-bound token alone: which task it works for and
// in which attempt is never taken from a message. The gateway keeps nothing
// itself; any number of them may run side by side. When the history store
// cannot be reached it answers UNAVAILABLE at once and the daemon keeps its
// records in its spool, so the gateway need not go down with the store.
//
// Error codes: UNAUTHENTICATED (a fresh token may help), PERMISSION_DENIED,
// ABORTED (a newer attempt has begun, or the pod's object is gone: stop; open
// streams of commands end with it, see Gateway.Notice), FAILED_PRECONDITION
// (records are missing; the detail AppendResponse holds the last stored
// sequence), ALREADY_EXISTS (other records are stored by the same sequences),
// NOT_FOUND, INVALID_ARGUMENT, RESOURCE_EXHAUSTED (larger than any
// daemon's request; or the task, or its namespace, has as much stored as it may,
// which the task's status tells: try again), UNAVAILABLE (try again).
//
// The gateway is reached by whoever can open a connection, agents included. So
// the caller is identified before any of the request's body is read, and what a
// known caller may make the server spend at once is bounded by task, by
// namespace and in all: whoever sends much waits, and keeps nobody else waiting.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/daemonapi/v1/daemonv1connect"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/podidentity"
)

const (
	// maxRequestBytes is the size of the largest request. Daemons send batches
	// of about a mebibyte, and one record more.
	maxRequestBytes = 16 << 20
	// maxQuestionBytes is the size of the largest request whose answer lasts: it is
	// held as long.
	maxQuestionBytes = 16 << 10
	// chunkBytes is about how much of a conversation is sent in one message.
	chunkBytes = 4 << 20
	// pageEntries is how many messages are read from the store at a time.
	pageEntries = 500
	// maxTextBytes is the longest text that a conversation is sent with whole.
	maxTextBytes = 1 << 20
	// maxNameBytes is how long an operation id, a reason and the like may be.
	maxNameBytes = 1024
)

// Store is what the gateway needs of the history store. Errors are those of
// package history.
type Store interface {
	Begin(ctx context.Context, task history.Task, attempt int64, source *history.Source, options history.BeginOptions) (history.TaskState, error)
	Append(ctx context.Context, task history.Task, attempt int64, records []history.Record) (last int64, err error)
	MoveConversation(ctx context.Context, task history.Task, attempt int64, op history.MoveOperation) (history.Position, error)
	Report(ctx context.Context, task history.Task, attempt int64, problem *history.Problem) error
	TaskState(ctx context.Context, taskUID string) (history.TaskState, error)
	Attempt(ctx context.Context, taskUID string) (int64, error)
	PushedCheckpoints(ctx context.Context, taskUID string) (durable, lost []int64, err error)
	Conversation(ctx context.Context, taskUID string, after int64, limit int) ([]history.Entry, error)
	Text(ctx context.Context, namespace string, p *conversation.Pieces) (string, error)
}

// Authenticator says which attempt of which task holds a token. Errors are
// those of package podidentity.
type Authenticator interface {
	Verify(ctx context.Context, token string) (podidentity.Identity, error)
}

// Tasks knows the Task objects as they are; see podidentity.LiveTasks.
type Tasks interface {
	podidentity.TaskChecker
	// Inherits reports whether a task begins with the conversation of another one.
	Inherits(ctx context.Context, id podidentity.Identity) (bool, error)
}

// CheckpointRequest is a Checkpoint object that waits for a daemon.
type CheckpointRequest struct {
	Name    string
	UID     string
	Message string
}

// Requests knows which checkpoints are asked for.
type Requests interface {
	// Pending returns the oldest of those asked of a task, in order and a limited
	// number of them, without those with a UID that is in passed.
	Pending(namespace, task string, passed map[string]bool) []CheckpointRequest
	// Changes returns a channel that gets something when that may have changed
	// since it was last read, until leave is called. It is of those that are returned
	// where none is passed.
	Changes(namespace, task string) (changed <-chan struct{}, leave func())
}

// Options of a Gateway. Store, Authenticator and Requests are needed.
type Options struct {
	Store         Store
	Authenticator Authenticator
	Requests      Requests
	Log           logr.Logger
	// Connections is how many Store has; requests that use it are bounded by that. 14
	// if zero.
	Connections int
	// Tasks has a look, at each Begin, whether the Task is there: identities are
	// remembered for a while, and a pod that outlives its Task must not bring
	// back a history that was deleted. Nil for no look.
	Tasks Tasks
	// TaskBytesPerSecond is how fast one task's records are taken in the long
	// run, each counted with a kibibyte more than it has; 4 MiB if zero.
	TaskBytesPerSecond int
	// Registerer gets the metrics; nil for none.
	Registerer prometheus.Registerer
	// Heartbeat is how often an idle stream of commands shows that it lives; 20 s if zero.
	Heartbeat time.Duration
	// StreamLifetime is how long a stream of commands is kept, so that daemons
	// spread over new servers and show fresh tokens; 15 min if zero.
	StreamLifetime time.Duration
}

// Gateway serves the daemons. Make one with New.
type Gateway struct {
	store          Store
	authenticator  Authenticator
	requests       Requests
	tasks          Tasks
	log            logr.Logger
	metrics        *metrics
	heartbeat      time.Duration
	streamLifetime time.Duration
	outage         throttle
	streams        streams
	shares         *shares

	closeOnce sync.Once
	closing   chan struct{}
}

var _ daemonv1connect.DaemonServiceHandler = (*Gateway)(nil)

// New returns a Gateway.
func New(o Options) *Gateway {
	if o.Heartbeat <= 0 {
		o.Heartbeat = 20 * time.Second
	}
	if o.StreamLifetime <= 0 {
		o.StreamLifetime = 15 * time.Minute
	}
	if o.TaskBytesPerSecond <= 0 {
		o.TaskBytesPerSecond = defaultTaskBytesPerSecond
	}
	if o.Connections <= 0 {
		o.Connections = defaultConnections
	}
	return &Gateway{
		store: o.Store, authenticator: o.Authenticator, requests: o.Requests, tasks: o.Tasks, log: o.Log,
		metrics: newMetrics(o.Registerer), heartbeat: o.Heartbeat, streamLifetime: o.StreamLifetime,
		closing: make(chan struct{}), shares: newShares(o.TaskBytesPerSecond, o.Connections),
	}
}

// Handler returns the path prefix and the handler to serve under it.
func (g *Gateway) Handler() (string, http.Handler) {
	path, handler := daemonv1connect.NewDaemonServiceHandler(g,
		connect.WithReadMaxBytes(maxRequestBytes),
		connect.WithCodec(boundedCodec{}),
		connect.WithInterceptors(g.metrics),
	)
	return path, authentication{gateway: g, errors: connect.NewErrorWriter(), next: handler}
}

// Close ends the streams of commands, so that the HTTP server can shut down;
// daemons connect again, to another server if there is one.
func (g *Gateway) Close() { g.closeOnce.Do(func() { close(g.closing) }) }

// Begin implements the RPC.
func (g *Gateway) Begin(ctx context.Context, req *connect.Request[daemonv1.BeginRequest]) (*connect.Response[daemonv1.BeginResponse], error) {
	id := identityOf(ctx)
	source, err := sourceOf(req.Msg.GetSource())
	if err != nil {
		return nil, err
	}
	if err := g.mayBegin(ctx, id, source); err != nil {
		return nil, g.failure(ctx, err)
	}
	state, err := g.store.Begin(ctx, taskOf(id), id.Attempt, source, history.BeginOptions{
		SnapshotEveryMessages: req.Msg.GetSnapshotEveryMessages(),
	})
	if err != nil {
		return nil, g.failure(ctx, err)
	}
	g.streams.fence(id.TaskUID, state.Attempt)
	g.log.Info("an attempt has begun", "namespace", id.Namespace, "task", id.TaskName, "attempt", id.Attempt,
		"daemonVersion", req.Msg.GetDaemonVersion(), "lastSequence", state.LastSequence)
	response := beginResponse(state)
	if req.Msg.GetListDurable() {
		if response.DurableCheckpoints, response.LostCheckpoints, err = g.store.PushedCheckpoints(ctx, id.TaskUID); err != nil {
			return nil, g.failure(ctx, err)
		}
	}
	return connect.NewResponse(response), nil
}

// mayBegin asks what the Task object says. A task that begins with another one's
// conversation must name it where the store does not know the task yet, or, put
// back to an older copy, not any more: begun without it, it would never have it.
func (g *Gateway) mayBegin(ctx context.Context, id podidentity.Identity, source *history.Source) error {
	if g.tasks == nil {
		return nil
	}
	if err := g.tasks.CheckTask(ctx, id); err != nil || source != nil {
		return err
	}
	if _, err := g.store.Attempt(ctx, id.TaskUID); !errors.Is(err, history.ErrNotFound) {
		return err
	}
	inherits, err := g.tasks.Inherits(ctx, id)
	if err == nil && inherits {
		err = fmt.Errorf("%w: the task %s/%s, which begins with another one's conversation: it must be said with which",
			history.ErrNotFound, id.Namespace, id.TaskName)
	}
	return err
}

// Append implements the RPC.
func (g *Gateway) Append(ctx context.Context, req *connect.Request[daemonv1.AppendRequest]) (*connect.Response[daemonv1.AppendResponse], error) {
	id := identityOf(ctx)
	records, err := recordsOf(req.Msg.GetRecords())
	if err != nil {
		return nil, err
	}
	g.shares.spend(id, proto.Size(req.Msg), len(records))
	last, err := g.store.Append(ctx, taskOf(id), id.Attempt, records)
	if err != nil {
		return nil, g.failure(ctx, err)
	}
	g.metrics.records.Add(float64(len(records)))
	return connect.NewResponse(&daemonv1.AppendResponse{LastSequence: last}), nil
}

// Report implements the RPC.
func (g *Gateway) Report(ctx context.Context, req *connect.Request[daemonv1.ReportRequest]) (*connect.Response[daemonv1.ReportResponse], error) {
	id := identityOf(ctx)
	problem, err := problemOf(req.Msg.GetProblem())
	if err != nil {
		return nil, err
	}
	if err := g.store.Report(ctx, taskOf(id), id.Attempt, problem); err != nil {
		return nil, g.failure(ctx, err)
	}
	return connect.NewResponse(&daemonv1.ReportResponse{}), nil
}

// MoveConversation implements the RPC. Checkpoint 0 leads to where the task's
// own conversation begins, before the prompt; the daemon then says that again.
func (g *Gateway) MoveConversation(ctx context.Context, req *connect.Request[daemonv1.MoveConversationRequest]) (*connect.Response[daemonv1.MoveConversationResponse], error) {
	id := identityOf(ctx)
	m := req.Msg
	operation := history.MoveOperation{
		ID: daemonapi.UpgradeOperationKey(m.GetOperationId(), m.GetReason()), Checkpoint: m.GetCheckpoint(), Position: m.GetPosition(),
		Reason: m.GetReason(), KeepPosition: m.GetKeepPosition(),
	}
	if fault := moveFault(&operation); fault != "" {
		return nil, invalid("the request %s", fault)
	}
	position, err := g.store.MoveConversation(ctx, taskOf(id), id.Attempt, operation)
	if err != nil {
		return nil, g.failure(ctx, err)
	}
	return connect.NewResponse(&daemonv1.MoveConversationResponse{Position: positionMessage(position)}), nil
}

// Conversation implements the RPC.
func (g *Gateway) Conversation(ctx context.Context, req *connect.Request[daemonv1.ConversationRequest], stream *connect.ServerStream[daemonv1.ConversationResponse]) error {
	id := identityOf(ctx)
	arrived, ok := ctx.Value(arrivalKey{}).(*arrival)
	if !ok {
		return connect.NewError(connect.CodeInternal, errors.New("the request did not come by the gateway's handler"))
	}
	working, err := arrived.work(ctx)
	if err != nil {
		return err
	}
	defer arrived.rest()
	send := func(part *daemonv1.ConversationResponse) (context.Context, error) {
		return arrived.send(ctx, func() error { return stream.Send(part) })
	}
	state, err := g.store.TaskState(working, id.TaskUID)
	if err != nil {
		return g.failure(working, err)
	}
	// The UID comes from the pod's labels, so the namespace must be looked at.
	if state.Task != taskOf(id) {
		return g.failure(ctx, fmt.Errorf("%w: the task %s/%s with UID %s", history.ErrNotFound, id.Namespace, id.TaskName, id.TaskUID))
	}
	if state.Attempt > id.Attempt {
		return g.failure(ctx, fenced(id, state.Attempt))
	}
	for after := max(req.Msg.GetAfterPosition(), 0); ; {
		entries, err := g.store.Conversation(working, id.TaskUID, after, pageEntries)
		if err != nil {
			return g.failure(working, err)
		}
		if len(entries) == 0 {
			return nil
		}
		after = entries[len(entries)-1].Position
		if working, err = g.chunks(working, id.Namespace, entries, send); err != nil {
			return err
		}
	}
}

// chunks sends entries in messages of about chunkBytes, with the texts that
// were cut made whole; a larger entry gets a message of its own. Each send begins
// with a context of its own what is worked on after it.
func (g *Gateway) chunks(working context.Context, namespace string, entries []history.Entry, send func(*daemonv1.ConversationResponse) (context.Context, error)) (context.Context, error) {
	chunk, size := &daemonv1.ConversationResponse{}, 0
	for _, e := range entries {
		err := g.hydrate(working, namespace, &e.Message)
		if err != nil {
			return nil, g.failure(working, err)
		}
		m := entryMessage(e)
		bytes := proto.Size(m)
		if size > 0 && size+bytes > chunkBytes {
			if working, err = send(chunk); err != nil {
				return nil, err
			}
			chunk, size = &daemonv1.ConversationResponse{}, 0
		}
		chunk.Entries = append(chunk.Entries, m)
		size += bytes
	}
	return send(chunk)
}

// hydrate makes the texts of a message whole that were cut, up to
// maxTextBytes each; larger ones keep their beginning and their pieces. So do
// those of which a piece is missing: a damaged text must not keep an agent
// from its conversation.
func (g *Gateway) hydrate(ctx context.Context, namespace string, m *conversation.Message) error {
	cut := m.Texts()
	for _, t := range cut {
		if *t.Pieces == nil || (*t.Pieces).Bytes > maxTextBytes {
			continue
		}
		whole, err := g.store.Text(ctx, namespace, *t.Pieces)
		if errors.Is(err, history.ErrCorrupted) {
			g.log.Error(err, "a text of a conversation is sent without its end", "namespace", namespace)
			continue
		}
		if err != nil {
			return err
		}
		*t.Text, *t.Pieces = whole, nil
	}
	return nil
}

func taskOf(id podidentity.Identity) history.Task {
	return history.Task{Namespace: id.Namespace, Name: id.TaskName, UID: id.TaskUID}
}
