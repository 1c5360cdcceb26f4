// Package gatewayclient is the daemon's side of the protocol with the server. It identifies
// the pod by its token, which it reads again for each request since the token rotates, and
// reduces the server's errors to the few that a daemon acts upon.
package gatewayclient

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/daemonapi/v1/daemonv1connect"
)

// Errors that callers distinguish. Any other error means: try again later.
var (
	// ErrFenced: a newer attempt of the task has begun, or this pod's object no longer
	// exists; stop writing.
	ErrFenced = errors.New("this attempt of the task is over")
	// ErrGap: the server lacks records before the first one given.
	ErrGap = errors.New("the server lacks earlier records")
	// ErrNotFound: the server does not know the checkpoint, or not the task.
	ErrNotFound = errors.New("the server does not know it")
	// ErrSourceAwaited: the history has lost the checkpoint that the task was started from,
	// and the server awaits it; see MarkBegun. It is also an AwaitedError and an
	// ErrNotFound.
	ErrSourceAwaited = errors.New("the history has lost the checkpoint that the task was started from")
	// ErrRefused: the server does not accept this pod as one of the task's.
	ErrRefused = errors.New("the server refuses this pod")
	// ErrForeign: the server has another record with the same sequence.
	ErrForeign = errors.New("the server has other records of this task")
	// ErrInvalid: the server does not accept such a request, now or later.
	ErrInvalid = errors.New("the server does not accept this request")
	// ErrOlder: the server is of a version that does not know such requests.
	ErrOlder = errors.New("the server is of an older version")
)

// FencedError is an ErrFenced that knows which attempt is the newest.
type FencedError struct{ Newest int64 }

// Error implements error.
func (e *FencedError) Error() string {
	return fmt.Sprintf("%v, since attempt %d has been seen", ErrFenced, e.Newest)
}

// Is reports that it is an ErrFenced.
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// Fenced returns an ErrFenced by attempt newest, which is 0 if unknown.
func Fenced(newest int64) error {
	if newest == 0 {
		return ErrFenced
	}
	return &FencedError{Newest: newest}
}

// Timeouts of one call. silentTimeout applies to each message of a stream.
const (
	callTimeout   = 30 * time.Second
	silentTimeout = 75 * time.Second
)

// Config is the server's address and how to identify to it.
type Config struct {
	// URL is the base URL of the server.
	URL string
	// CABundle is a bundle of PEM certificates that are trusted besides the system's.
	CABundle string
	// TokenFile is the path of the pod's token.
	TokenFile string
	// Version is the daemon's version, for the server's log.
	Version string
	// SnapshotEveryMessages is after how many messages the server records a snapshot of the
	// conversation; 0 for never.
	SnapshotEveryMessages int64
	// Source is the checkpoint that the task is started from; nil if there is none. Every
	// Begin sends it: whichever is the first that the server receives, or receives again
	// after its store was restored from an older copy, creates the conversation.
	Source *daemonapi.Source
	// SourceWait is how long a task that has run before waits for its source; 0 means 6
	// minutes, within which each daemon checks whether the store has gone back. Only older
	// servers need it: newer ones measure the wait themselves.
	SourceWait time.Duration
}

// Client calls the server.
type Client struct {
	rpc    daemonv1connect.DaemonServiceClient
	begin  *daemonv1.BeginRequest
	source sourceWait
	// budgets is called with those in the server's answers; nil if nobody wants to know them.
	budgets func(*daemonv1.Budgets)
}

// New returns a client. It connects at the first call.
func New(cfg Config) (*Client, error) {
	transport := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout:   5 * time.Second,
		IdleConnTimeout:       90 * time.Second,
		ExpectContinueTimeout: time.Second,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: 20 * time.Second, PingTimeout: 10 * time.Second},
	}
	if cfg.CABundle != "" {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM([]byte(cfg.CABundle)) {
			return nil, errors.New("the caBundle in the pod's configuration contains no certificate")
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	rpc := daemonv1connect.NewDaemonServiceClient(
		&http.Client{Transport: identified{file: cfg.TokenFile, next: transport}}, cfg.URL)
	begin := &daemonv1.BeginRequest{DaemonVersion: cfg.Version, SnapshotEveryMessages: cfg.SnapshotEveryMessages}
	if s := cfg.Source; s != nil {
		begin.Source = &daemonv1.Source{TaskUid: s.TaskUID, Checkpoint: s.Checkpoint, IncludeConversation: s.IncludeConversation, Position: s.Position}
	}
	c := &Client{rpc: rpc, begin: begin, source: sourceWait{patience: cmp.Or(cfg.SourceWait, 6*time.Minute)}}
	if cfg.Source != nil {
		c.source.source = cfg.Source.String()
	}
	return c, nil
}

// identified adds the pod's token to each request.
type identified struct {
	file string
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t identified) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := Token(t.file)
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return t.next.RoundTrip(r)
}

// Token reads the pod's token.
func Token(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the pod's token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", fmt.Errorf("the pod's token in %s is empty", file)
	}
	return token, nil
}

// classify wraps an error of the server in the one that callers know.
func classify(what string, err error) error {
	if err == nil {
		return nil
	}
	switch connect.CodeOf(err) {
	case connect.CodeAborted:
		return fmt.Errorf("%s: %w: %w", what, ErrFenced, err)
	case connect.CodeFailedPrecondition:
		return fmt.Errorf("%s: %w: %w", what, ErrGap, err)
	case connect.CodeNotFound:
		return fmt.Errorf("%s: %w: %w", what, ErrNotFound, err)
	case connect.CodeAlreadyExists:
		return fmt.Errorf("%s: %w: %w", what, ErrForeign, err)
	case connect.CodeInvalidArgument, connect.CodeUnimplemented:
		return fmt.Errorf("%s: %w: %w", what, ErrInvalid, err)
	case connect.CodePermissionDenied:
		return fmt.Errorf("%s: %w: %w", what, ErrRefused, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Answered reports whether err is a definite refusal: the server has received the request
// and refused it, or the request was never made. It is not one if the server is unreachable
// or asks for a pause.
func Answered(err error) bool {
	var answer *connect.Error
	if !errors.As(err, &answer) {
		return err != nil
	}
	switch answer.Code() {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled, connect.CodeUnknown, connect.CodeResourceExhausted:
		return false
	}
	return true
}

// Begin opens the attempt.
func (c *Client) Begin(ctx context.Context) (*daemonv1.BeginResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	request := proto.CloneOf(c.begin)
	if request.Source != nil {
		request.Source.HasBegun, request.Source.MayBeLost = c.source.hasBegun(), c.source.over()
	}
	r, err := c.rpc.Begin(ctx, connect.NewRequest(request))
	err = classify("begin the attempt at the server", err)
	if request.Source != nil {
		err = c.source.handle(time.Now(), err)
	}
	if err != nil {
		return nil, err
	}
	c.tell(r.Msg.GetBudgets())
	return r.Msg, nil
}

// OnBudgets has f called with the budgets in each answer to Begin and Append, before that returns; with nil
// for an answer that says nothing about them. It must be called before those.
func (c *Client) OnBudgets(f func(*daemonv1.Budgets)) { c.budgets = f }

func (c *Client) tell(b *daemonv1.Budgets) {
	if c.budgets != nil {
		c.budgets(b)
	}
}

// MarkBegun says that the task has run before and that its volume has what it needs. If the
// history has lost the checkpoint that the task was started from, the source's daemon may
// send it again; the server makes Begin wait for that for some minutes, longer while it
// hears from that daemon, and then begins the conversation without the inherited part. A
// task that has never run waits for as long as it takes.
func (c *Client) MarkBegun() { c.source.begin() }

// Append stores records and returns the sequence through which all are stored.
func (c *Client) Append(ctx context.Context, records []*daemonv1.Record) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := c.rpc.Append(ctx, connect.NewRequest(&daemonv1.AppendRequest{Records: records}))
	if err != nil {
		return 0, classify("send records to the server", err)
	}
	c.tell(r.Msg.GetBudgets())
	return r.Msg.GetLastSequence(), nil
}

// Report reports what keeps the daemon from its work; nil for nothing.
func (c *Client) Report(ctx context.Context, problem *daemonv1.Problem) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := c.rpc.Report(ctx, connect.NewRequest(&daemonv1.ReportRequest{Problem: problem}))
	return classify("report a problem to the server", err)
}

// MoveConversation moves the conversation, once per operation id, and returns its new
// position.
func (c *Client) MoveConversation(ctx context.Context, m *daemonv1.MoveConversationRequest) (*daemonv1.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := c.rpc.MoveConversation(ctx, connect.NewRequest(m))
	if err != nil {
		return nil, classify("move the conversation", err)
	}
	return r.Msg.GetPosition(), nil
}

// PushedCheckpoints lists the checkpoints that the server believes are in the gitstore, and
// those that it believes the gitstore has lost.
func (c *Client) PushedCheckpoints(ctx context.Context) (durable, lost []int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	request := proto.CloneOf(c.begin)
	request.ListDurable = true
	r, err := c.rpc.Begin(ctx, connect.NewRequest(request))
	if err != nil {
		return nil, nil, classify("ask the server for the durable checkpoints", err)
	}
	return r.Msg.GetDurableCheckpoints(), r.Msg.GetLostCheckpoints(), nil
}

// Conversation calls each with every message of the active branch, oldest first.
func (c *Client) Conversation(ctx context.Context, each func(*daemonv1.ConversationEntry) error) error {
	const what = "read the conversation from the server"
	ctx, alive := newWatchdog(ctx)
	defer alive.stop()
	stream, err := c.rpc.Conversation(ctx, connect.NewRequest(&daemonv1.ConversationRequest{}))
	if err != nil {
		return classify(what, err)
	}
	defer stream.Close()
	for stream.Receive() {
		alive.kick()
		for _, e := range stream.Msg().GetEntries() {
			if err := each(e); err != nil {
				return err
			}
		}
	}
	return classify(what, stream.Err())
}

// VerifyCheckpoint has a checkpoint of a task verified, this one's if the UID is empty. Unless the
// answer says that it was, it is to be repeated. Servers of earlier versions answer ErrInvalid.
func (c *Client) VerifyCheckpoint(ctx context.Context, taskUID string, number int64) (*daemonv1.VerifyCheckpointResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := c.rpc.VerifyCheckpoint(ctx, connect.NewRequest(&daemonv1.VerifyCheckpointRequest{TaskUid: taskUID, Checkpoint: number}))
	if err != nil {
		return nil, classify("have a checkpoint verified", err)
	}
	return r.Msg, nil
}

// SearchHistory returns the messages of the task's own conversation that contain the words. Servers
// of earlier versions answer ErrOlder.
func (c *Client) SearchHistory(ctx context.Context, query string, limit int) (*daemonv1.SearchHistoryResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := c.rpc.SearchHistory(ctx, connect.NewRequest(&daemonv1.SearchHistoryRequest{Query: query, Limit: int32(limit)}))
	if err != nil {
		return nil, classify("search the conversation", older(err))
	}
	return r.Msg, nil
}

// CallTool has a supervisor's tool called. It waits for the answer for as long as the server does, and
// until ctx ends: the answer may be that there is none yet. Servers of earlier versions answer
// ErrOlder.
func (c *Client) CallTool(ctx context.Context, call *daemonv1.CallToolRequest) (*daemonv1.CallToolResponse, error) {
	r, err := c.rpc.CallTool(ctx, connect.NewRequest(call))
	if err != nil {
		return nil, classify("call the tool "+call.GetTool(), older(err))
	}
	return r.Msg, nil
}

// older adds to an error that the server is of a version without the procedure.
func older(err error) error {
	if connect.CodeOf(err) == connect.CodeUnimplemented {
		return fmt.Errorf("%w: %w", ErrOlder, err)
	}
	return err
}

// ReportLive answers a request for the files as they are.
func (c *Client) ReportLive(ctx context.Context, report *daemonv1.ReportLiveRequest) error {
	_, err := c.rpc.ReportLive(ctx, connect.NewRequest(report))
	return classify("report the files as they are", err)
}

// Commands calls each with every command of the server, until the stream ends. It fails if
// the server is silent for longer than silentTimeout.
func (c *Client) Commands(ctx context.Context, each func(*daemonv1.Command)) error {
	const what = "listen for the server's commands"
	ctx, alive := newWatchdog(ctx)
	defer alive.stop()
	stream, err := c.rpc.Commands(ctx, connect.NewRequest(&daemonv1.CommandsRequest{}))
	if err != nil {
		return classify(what, err)
	}
	defer stream.Close()
	for stream.Receive() {
		alive.kick()
		each(stream.Msg())
	}
	return classify(what, stream.Err())
}

// watchdog cancels a context unless it is kicked within silentTimeout.
type watchdog struct {
	timer  *time.Timer
	cancel context.CancelFunc
}

func newWatchdog(ctx context.Context) (context.Context, watchdog) {
	ctx, cancel := context.WithCancel(ctx)
	return ctx, watchdog{timer: time.AfterFunc(silentTimeout, cancel), cancel: cancel}
}

func (d watchdog) kick() { d.timer.Reset(silentTimeout) }

func (d watchdog) stop() {
	d.timer.Stop()
	d.cancel()
}
