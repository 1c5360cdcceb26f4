// Package gateway serves the daemons of tasks: it implements daemonapi's DaemonService.
//
// A daemon is identified by its pod-bound token alone: its task and attempt are never
// taken from a message. The gateway is stateless; any number may run side by side. If the
// history store cannot be reached, the gateway answers UNAVAILABLE at once and the daemon
// keeps its records in its spool, so the gateway need not go down with the store.
//
// Error codes: UNAUTHENTICATED (a fresh token may help), PERMISSION_DENIED, ABORTED (a
// newer attempt has begun, or the pod's object is gone: stop; open command streams end
// with it, see Gateway.HandleNotification), FAILED_PRECONDITION (records are missing; the
// detail AppendResponse holds the last stored sequence), ALREADY_EXISTS (other records
// are stored under the same sequences), NOT_FOUND, INVALID_ARGUMENT, RESOURCE_EXHAUSTED
// (the request is larger than any daemon's; or the task or its namespace has reached its
// storage limit, as the task's status says: try again; or a problem was reported a moment ago: try again;
// or a search took too long), UNAVAILABLE (try again).
//
// Anyone who can open a connection can reach the gateway, agents included. So the caller
// is identified before any of the request's body is read, and the work that known callers
// may cause at once is bounded per task, per namespace and in total: a caller that sends
// a lot waits, and delays nobody else.
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

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/daemonapi/v1/daemonv1connect"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/codeadoption"
	"github.com/clew-dev/clew/internal/podidentity"
)

const (
	// maxRequestBytes is the size of the largest request. Daemons send batches of about a
	// mebibyte, and one more record.
	maxRequestBytes = 16 << 20
	// maxStreamRequestBytes is the size of the largest request for a stream: it is held
	// as long as the stream.
	maxStreamRequestBytes = 16 << 10
	// maxToolRequestBytes is the size of the largest call of a tool: it is held while the call waits.
	maxToolRequestBytes = 256 << 10
	// chunkBytes is the approximate size of one message of a conversation stream.
	chunkBytes = 4 << 20
	// pageEntries is the number of messages read from the store at a time.
	pageEntries = 500
	// maxTextBytes is the longest text of a conversation that is sent in full.
	maxTextBytes = 1 << 20
	// maxNameBytes bounds operation ids, reasons and the like.
	maxNameBytes = 1024
)

// Store is what the gateway needs of the history store. Errors are those of package
// history.
type Store interface {
	Adopt(ctx context.Context, task history.Task, former string) error
	Begin(ctx context.Context, task history.Task, attempt int64, source *history.Source, options history.BeginOptions) (history.TaskState, error)
	Append(ctx context.Context, task history.Task, attempt int64, records []history.Record) (last int64, err error)
	Spending(ctx context.Context, task history.Task, contract string) (history.Spending, error)
	MoveConversation(ctx context.Context, task history.Task, attempt int64, op history.MoveOperation) (history.Position, error)
	Report(ctx context.Context, task history.Task, attempt int64, problem *history.Problem) error
	TaskState(ctx context.Context, taskUID string) (history.TaskState, error)
	Attempt(ctx context.Context, taskUID string) (int64, error)
	PushedCheckpoints(ctx context.Context, taskUID string) (durable, lost []int64, err error)
	Conversation(ctx context.Context, taskUID string, after int64, limit int) ([]history.Entry, error)
	Text(ctx context.Context, namespace string, p *conversation.Pieces) (string, error)
	codeadoption.Store
	NamedCheckpoints(ctx context.Context, task history.Key, names, objects []string) ([]history.NamedCheckpoint, error)
	Checkpoint(ctx context.Context, task history.Key, number int64) (history.Checkpoint, error)
	Search(ctx context.Context, query history.SearchQuery) (history.SearchPage, error)
	CallTool(ctx context.Context, task history.Task, attempt int64, call history.NewToolCall) (history.ToolCall, error)
	ToolCall(ctx context.Context, taskUID, id string) (history.ToolCall, error)
}

// Verifier verifies checkpoints when a daemon has met damage; see verification.OnDemand.
type Verifier interface {
	// Verify verifies a checkpoint, unless that was done after since, and records what it finds.
	// Errors: verification.ErrInProgress if ctx ends before, and others if it cannot.
	Verify(ctx context.Context, task history.Task, number int64, since time.Time) error
}

// Code stores the checkpoints of tasks. Its refusals are *gitstoreapi.Refusal.
type Code interface{ codeadoption.Code }

// Authenticator identifies the attempt that a token belongs to. Errors are those of
// package podidentity.
type Authenticator interface {
	Verify(ctx context.Context, token string) (podidentity.Identity, error)
}

// Tasks reads the current Task objects; see podidentity.LiveTasks.
type Tasks interface {
	podidentity.TaskChecker
	// Inherits reports whether a task begins with the conversation of another task.
	Inherits(ctx context.Context, id podidentity.Identity) (bool, error)
	// Source returns the UID of the task that a task was started from; "" if there is none.
	Source(ctx context.Context, id podidentity.Identity) (string, error)
	// Adopted returns the UIDs of the former tasks whose history a task says it continues, newest first;
	// none if it starts anew.
	Adopted(ctx context.Context, id podidentity.Identity) ([]string, error)
	// Contract returns the name of the contract that a task belongs to; "" for none.
	Contract(ctx context.Context, id podidentity.Identity) (string, error)
	// SupervisorTools returns those of a supervisor's tools that a task's spec gives its agent, and
	// whether the task is a supervisor.
	SupervisorTools(ctx context.Context, id podidentity.Identity) (given []v1alpha1.AgentTool, supervisor bool, err error)
}

// CheckpointRequest is a Checkpoint object that waits for a daemon.
type CheckpointRequest struct {
	Name    string
	UID     string
	Message string
	// Hold is the UID of the set of checkpoints for which it is taken; empty for none.
	Hold string
	// Phase is true if it is that with which a phase begins which the task's own agent has set.
	Phase bool
}

// Release lets the agent of a task continue that was stopped for a set of checkpoints.
type Release struct {
	// Set is the UID of the Checkpoint that names the set.
	Set string
	// Gone is true if the set was deleted, or left the server's sight, before all were known to be taken.
	Gone bool
}

// Requests provides the pending checkpoint requests.
type Requests interface {
	// Pending returns a task's oldest requests, in order and limited in number, without
	// those whose UID is in passed.
	Pending(namespace, task string, passed map[string]bool) []CheckpointRequest
	// Changes returns a channel that receives when the result of Releases, or of Pending with none
	// passed, may have changed since the last receive, until leave is called.
	Changes(namespace, task string) (changed <-chan struct{}, leave func())
	// Releases returns the sets for which the agents need not be stopped any more, and of which the task is
	// a member.
	Releases(namespace, task string) []Release
}

// Live passes on requests for the files of tasks as they are; see package live.
type Live interface {
	// Requests returns a channel that receives the ids of requests, until leave is called.
	Requests(taskUID string) (ids <-chan string, leave func())
	// Answer ends a request, and all before it, with a commit, or with a problem.
	Answer(ctx context.Context, answer history.LiveMessage) error
}

// Options of a Gateway. Store, Authenticator and Requests are required.
type Options struct {
	Store         Store
	Authenticator Authenticator
	Requests      Requests
	// Code is nil if no task adopts the history of a former one.
	Code Code
	// Approvals is nil if nobody answers tool calls that wait.
	Approvals Approvals
	// Live is nil if nobody compares the files of running tasks.
	Live Live
	// Verifier is nil if no checkpoint is verified.
	Verifier Verifier
	// Family is nil if no agent looks at other tasks than its own.
	Family Family
	Log    logr.Logger
	// Connections is the number of Store's connections, which bounds the requests that
	// use it; 14 if zero.
	Connections int
	// Tasks is used at each Begin to check that the Task exists: identities are cached
	// for a while, and a pod that outlives its Task must not bring back a deleted
	// history. Nil for no check, and then no supervisor has tools.
	Tasks Tasks
	// TaskBytesPerSecond limits one task's records in the long run, each counted with an
	// extra kibibyte; 4 MiB if zero.
	TaskBytesPerSecond int
	// NamespaceBudgets are the budgets of namespaces.
	NamespaceBudgets budget.ByNamespace
	// Registerer receives the metrics; nil for none.
	Registerer prometheus.Registerer
	// Heartbeat is the interval of heartbeats on an idle command stream; 20 s if zero.
	Heartbeat time.Duration
	// StreamLifetime is how long a command stream is kept, so that daemons spread over
	// new servers and present fresh tokens; 15 min if zero.
	StreamLifetime time.Duration
}

// Gateway serves the daemons. Create one with New.
type Gateway struct {
	store          Store
	authenticator  Authenticator
	requests       Requests
	approvals      Approvals
	live           Live
	verifier       Verifier
	family         Family
	code           Code
	tasks          Tasks
	log            logr.Logger
	metrics        *metrics
	heartbeat      time.Duration
	streamLifetime time.Duration
	outage         throttle
	streams        streams
	answers        answers
	shares         *shares

	namespaceBudgets budget.ByNamespace

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
	if o.Approvals == nil {
		o.Approvals = noApprovals{}
	}
	return &Gateway{
		store: o.Store, authenticator: o.Authenticator, requests: o.Requests, approvals: o.Approvals, live: o.Live, verifier: o.Verifier, family: o.Family, code: o.Code, tasks: o.Tasks, log: o.Log,
		metrics: newMetrics(o.Registerer), heartbeat: o.Heartbeat, streamLifetime: o.StreamLifetime,
		closing: make(chan struct{}), shares: newShares(o.TaskBytesPerSecond, o.Connections), namespaceBudgets: o.NamespaceBudgets,
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

// Close ends the command streams, so that the HTTP server can shut down; daemons
// reconnect, to another server if there is one.
func (g *Gateway) Close() { g.closeOnce.Do(func() { close(g.closing) }) }

// Begin implements the RPC.
func (g *Gateway) Begin(ctx context.Context, req *connect.Request[daemonv1.BeginRequest]) (*connect.Response[daemonv1.BeginResponse], error) {
	id := identityOf(ctx)
	source, err := sourceOf(req.Msg.GetSource())
	if err != nil {
		return nil, err
	}
	g.shares.spend(id, beginCost, 0)
	if err := g.mayBegin(ctx, id, source); err != nil {
		return nil, err
	}
	if err := g.adoptCode(ctx, id); err != nil {
		return nil, g.failure(ctx, err)
	}
	contract, err := g.contract(ctx, id)
	if err != nil {
		return nil, g.failure(ctx, err)
	}
	state, err := g.store.Begin(ctx, taskOf(id), id.Attempt, source, history.BeginOptions{
		SnapshotEveryMessages: req.Msg.GetSnapshotEveryMessages(), Contract: contract,
	})
	if err != nil {
		return nil, g.failure(ctx, err)
	}
	g.streams.fence(id.TaskUID, state.Attempt)
	g.log.Info("an attempt has begun", "namespace", id.Namespace, "task", id.TaskName, "attempt", id.Attempt,
		"daemonVersion", req.Msg.GetDaemonVersion(), "lastSequence", state.LastSequence)
	response := beginResponse(state)
	response.Budgets = g.budgets(ctx, id)
	if req.Msg.GetListDurable() {
		if response.DurableCheckpoints, response.LostCheckpoints, err = g.store.PushedCheckpoints(ctx, id.TaskUID); err != nil {
			return nil, g.failure(ctx, err)
		}
	}
	return connect.NewResponse(response), nil
}

// contract returns the name of the contract to which the caller's task belongs, as its Task says now; "" for
// none.
func (g *Gateway) contract(ctx context.Context, id podidentity.Identity) (string, error) {
	if g.tasks == nil {
		return "", nil
	}
	return g.tasks.Contract(ctx, id)
}

// mayBegin checks the Task object, and carries out again what the store has lost of it.
func (g *Gateway) mayBegin(ctx context.Context, id podidentity.Identity, source *history.Source) error {
	if g.tasks == nil {
		return nil
	}
	if err := g.tasks.CheckTask(ctx, id); err != nil {
		return g.failure(ctx, err)
	}
	if err := g.adoptAgain(ctx, id); err != nil {
		return err
	}
	if err := g.namesSource(ctx, id, source); err != nil {
		return g.failure(ctx, err)
	}
	return nil
}

// namesSource checks that a request names the source that it must name. A task that begins with another one's conversation
// must name its source if the store does not know the task, either not yet or, after a
// restore from an older copy, not any more: begun without the source, it would never get
// that conversation.
func (g *Gateway) namesSource(ctx context.Context, id podidentity.Identity, source *history.Source) error {
	if source != nil {
		return nil
	}
	if _, err := g.store.Attempt(ctx, id.TaskUID); !errors.Is(err, history.ErrNotFound) {
		return err
	}
	inherits, err := g.tasks.Inherits(ctx, id)
	if err == nil && inherits {
		err = fmt.Errorf("%w: the task %s/%s begins with another task's conversation; the request must name that source",
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
	return connect.NewResponse(&daemonv1.AppendResponse{LastSequence: last, Budgets: g.budgets(ctx, id)}), nil
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

// MoveConversation implements the RPC. Checkpoint 0 leads to the beginning of the task's
// own conversation, before the prompt; the daemon then sends the prompt again.
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
	arrived, err := arrivalOf(ctx)
	if err != nil {
		return err
	}
	working, err := arrived.work(ctx)
	if err != nil {
		return err
	}
	defer arrived.releaseSlot()
	send := func(part *daemonv1.ConversationResponse) (context.Context, error) {
		return arrived.send(ctx, func() error { return stream.Send(part) })
	}
	state, err := g.store.TaskState(working, id.TaskUID)
	if err != nil {
		return g.failure(working, err)
	}
	// The UID comes from the pod's labels, so the namespace must be checked.
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

// chunks sends entries in messages of about chunkBytes, with cut texts restored; a larger
// entry gets a message of its own. After each send, the work continues with the context
// that the send returned.
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

// hydrate restores the cut texts of a message, up to maxTextBytes each; longer ones keep
// their beginning and their pieces. So do texts with a missing piece: a damaged text must
// not keep an agent from its conversation.
func (g *Gateway) hydrate(ctx context.Context, namespace string, m *conversation.Message) error {
	cut := m.Texts()
	for _, t := range cut {
		if *t.Pieces == nil || (*t.Pieces).Bytes > maxTextBytes {
			continue
		}
		whole, err := g.store.Text(ctx, namespace, *t.Pieces)
		if errors.Is(err, history.ErrCorrupted) {
			g.log.Error(err, "a damaged text of a conversation is sent only in part", "namespace", namespace)
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
