package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega/gcustom"
	gomegatypes "github.com/onsi/gomega/types"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/daemonapi/v1/daemonv1connect"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/podidentity"
	"github.com/clew-dev/clew/internal/server/checkpointrequests"
	"github.com/clew-dev/clew/internal/server/gateway"
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

var pg *pgtest.Server

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m, &pg, postgres.Migrate)) }

func TestSpecs(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "The gateway")
}

// gone stands in for a cluster without Tasks.
type gone struct{}

func (gone) CheckTask(_ context.Context, id podidentity.Identity) error {
	return fmt.Errorf("%w: no Task %s", podidentity.ErrForbidden, id.TaskName)
}

func (gone) Contract(context.Context, podidentity.Identity) (string, error) { return "", nil }

func (gone) Inherits(context.Context, podidentity.Identity) (bool, error) { return false, nil }

func (gone) Source(context.Context, podidentity.Identity) (string, error) { return "", nil }

func (gone) Adopted(context.Context, podidentity.Identity) ([]string, error) { return nil, nil }

func (gone) SupervisorTools(context.Context, podidentity.Identity) ([]clewv1alpha1.AgentTool, bool, error) {
	return nil, false, nil
}

// tokens replaces what a real Verifier finds out from the API server.
type tokens map[string]podidentity.Identity

func (k tokens) Verify(_ context.Context, token string) (podidentity.Identity, error) {
	switch token {
	case "stranger":
		return podidentity.Identity{}, fmt.Errorf("no task's pod: %w", podidentity.ErrForbidden)
	case "gone":
		return podidentity.Identity{}, fmt.Errorf("the pod does not exist any more: %w", podidentity.ErrPodGone)
	case "outage":
		return podidentity.Identity{}, fmt.Errorf("secret detail: %w", podidentity.ErrUnavailable)
	}
	if id, ok := k[token]; ok {
		return id, nil
	}
	return podidentity.Identity{}, podidentity.ErrUnauthenticated
}

func identity(name string, attempt int64) podidentity.Identity {
	return podidentity.Identity{Namespace: "team", TaskName: name, TaskUID: "uid-of-" + name, Attempt: attempt}
}

// unreachable names a store that is down.
const unreachable = "postgres://u:secret@127.0.0.1:1/none"

// fixture is a gateway behind HTTP/2 and TLS, as daemons see it.
type fixture struct {
	ctx     context.Context
	server  *httptest.Server
	gateway *gateway.Gateway
	board   *checkpointrequests.Board
}

// serve serves a gateway with a new store.
func serve(change ...func(*gateway.Options)) *fixture {
	GinkgoHelper()
	return serveAt(pg.Database(GinkgoTB()), change...)
}

// serveAt serves a gateway with the store that a DSN names.
func serveAt(dsn string, change ...func(*gateway.Options)) *fixture {
	GinkgoHelper()
	spoofed := identity("a", 9)
	spoofed.Namespace = "elsewhere"
	board := checkpointrequests.New()
	options := gateway.Options{
		Store: openStore(dsn), Requests: board, Log: testLog(), Registerer: prometheus.NewRegistry(),
		Authenticator: tokens{"a1": identity("a", 1), "a2": identity("a", 2), "b1": identity("b", 1), "spoofed": spoofed,
			"publisher": {Namespace: "team", TaskName: "a", TaskUID: "uid-of-a", Publishes: true}},
	}
	for _, f := range change {
		f(&options)
	}
	f := &fixture{ctx: GinkgoT().Context(), gateway: gateway.New(options), board: board}
	f.server = startServer(f.gateway)
	DeferCleanup(f.gateway.Close)
	if dsn != unreachable {
		DeferOnFailure(reportHistory, NodeTimeout(10*time.Second), options.Store)
	}
	return f
}

// startServer serves a gateway, and reports the latest requests if the spec fails.
func startServer(g *gateway.Gateway) *httptest.Server {
	mux := http.NewServeMux()
	mux.Handle(g.Handler())
	server := httptest.NewUnstartedServer(reported(mux))
	server.EnableHTTP2 = true
	server.StartTLS()
	DeferCleanup(server.Close)
	return server
}

func testLog() logr.Logger { return testr.NewWithInterface(GinkgoTB(), testr.Options{}) }

func openStore(dsn string) *postgres.Store {
	GinkgoHelper()
	store, err := postgres.OpenPool(GinkgoT().Context(), dsn, testLog(), postgres.Pool{Limits: postgres.Limits{ProblemEvery: time.Nanosecond}})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(store.Close)
	return store
}

type withToken struct {
	token string
	next  http.RoundTripper
}

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if w.token != "" {
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	return w.next.RoundTrip(r)
}

func clientOf(server *httptest.Server, token string) daemonv1connect.DaemonServiceClient {
	return daemonv1connect.NewDaemonServiceClient(&http.Client{Transport: withToken{token, server.Client().Transport}}, server.URL)
}

func (f *fixture) client(token string) daemonv1connect.DaemonServiceClient {
	return clientOf(f.server, token)
}

func (f *fixture) tryBegin(token string, source *daemonv1.Source) (*daemonv1.BeginResponse, error) {
	response, err := f.client(token).Begin(f.ctx, connect.NewRequest(&daemonv1.BeginRequest{DaemonVersion: "test", Source: source}))
	if err != nil {
		return nil, err
	}
	return response.Msg, nil
}

func (f *fixture) begin(token string) *daemonv1.BeginResponse {
	GinkgoHelper()
	return f.beginFrom(token, nil)
}

func (f *fixture) beginFrom(token string, source *daemonv1.Source) *daemonv1.BeginResponse {
	GinkgoHelper()
	begun, err := f.tryBegin(token, source)
	Expect(err).NotTo(HaveOccurred(), "begin as %s", token)
	return begun
}

func (f *fixture) tryAppend(token string, records ...*daemonv1.Record) (int64, error) {
	response, err := f.client(token).Append(f.ctx, connect.NewRequest(&daemonv1.AppendRequest{Records: records}))
	if err != nil {
		return 0, err
	}
	return response.Msg.GetLastSequence(), nil
}

// append returns the sequence of the last stored record.
func (f *fixture) append(token string, records ...*daemonv1.Record) int64 {
	GinkgoHelper()
	last, err := f.tryAppend(token, records...)
	Expect(err).NotTo(HaveOccurred(), "append as %s", token)
	return last
}

func (f *fixture) tryMove(token string, move *daemonv1.MoveConversationRequest) (*daemonv1.Position, error) {
	response, err := f.client(token).MoveConversation(f.ctx, connect.NewRequest(move))
	if err != nil {
		return nil, err
	}
	return response.Msg.GetPosition(), nil
}

// move returns the position that the conversation was moved to.
func (f *fixture) move(token string, move *daemonv1.MoveConversationRequest) *daemonv1.Position {
	GinkgoHelper()
	position, err := f.tryMove(token, move)
	Expect(err).NotTo(HaveOccurred(), "move %s", move.GetOperationId())
	return position
}

func (f *fixture) tryConversation(token string, after int64) ([]*daemonv1.ConversationEntry, error) {
	stream, err := f.client(token).Conversation(f.ctx, connect.NewRequest(&daemonv1.ConversationRequest{AfterPosition: after}))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	var entries []*daemonv1.ConversationEntry
	for stream.Receive() {
		entries = append(entries, stream.Msg().GetEntries()...)
	}
	return entries, stream.Err()
}

// conversation returns the messages after a position.
func (f *fixture) conversation(token string, after int64) []*daemonv1.ConversationEntry {
	GinkgoHelper()
	entries, err := f.tryConversation(token, after)
	Expect(err).NotTo(HaveOccurred(), "read the conversation after position %d", after)
	return entries
}

// texts returns the texts of a whole conversation.
func (f *fixture) texts(token string) []string {
	GinkgoHelper()
	var texts []string
	for _, entry := range f.conversation(token, 0) {
		texts = append(texts, entry.GetMessage().GetText())
	}
	return texts
}

func text(sequence int64, role daemonv1.Role, text string) *daemonv1.Record {
	return message(sequence, &daemonv1.Message{Role: role, Text: text})
}

func message(sequence int64, m *daemonv1.Message) *daemonv1.Record {
	return &daemonv1.Record{Sequence: sequence, Time: timestamppb.Now(), Attempt: 1, Body: &daemonv1.Record_Message{Message: m}}
}

// commands reads a stream into a channel; empty commands are left out.
func (f *fixture) commands(ctx context.Context, token string) (received <-chan *daemonv1.TakeCheckpoint, ended <-chan error) {
	GinkgoHelper()
	stream, err := f.client(token).Commands(ctx, connect.NewRequest(&daemonv1.CommandsRequest{}))
	Expect(err).NotTo(HaveOccurred())
	Expect(stream.Receive()).To(BeTrue(), "the stream should begin with a command, and ended with %v", stream.Err())
	Expect(stream.Msg().GetCommand()).To(BeNil(), "the first command is empty")
	commands, end := make(chan *daemonv1.TakeCheckpoint, 10), make(chan error, 1)
	go func() {
		defer GinkgoRecover()
		for stream.Receive() {
			if c := stream.Msg().GetTakeCheckpoint(); c != nil {
				commands <- c
			}
		}
		end <- errors.Join(stream.Err(), stream.Close())
		close(commands)
	}()
	return commands, end
}

func request(task, name string) *clewv1alpha1.Checkpoint {
	return &clewv1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name)},
		Spec:       clewv1alpha1.CheckpointSpec{TaskRef: clewv1alpha1.NameReference{Name: task}, Message: "please"},
	}
}

// next returns the next value of a channel, whatever it is.
func next[T any](from <-chan T, what string) T {
	GinkgoHelper()
	var value T
	Eventually(from).WithTimeout(20*time.Second).Should(Receive(&value), what)
	return value
}

// expectCommand expects that the next command is to take the checkpoint of this name.
func expectCommand(commands <-chan *daemonv1.TakeCheckpoint, name string) {
	GinkgoHelper()
	want := &daemonv1.TakeCheckpoint{Name: name, Uid: "uid-" + name, Message: "please"}
	Expect(next(commands, "the command "+name)).To(BeComparableTo(want, protocmp.Transform()))
}

// listen subscribes the gateway to changes, as the server does, and returns once it is
// subscribed.
func (f *fixture) listen(dsn string) {
	GinkgoHelper()
	store := openStore(dsn)
	ctx, cancel := context.WithCancel(f.ctx)
	listening, done := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(listening) })
	go func() {
		defer GinkgoRecover()
		defer close(done)
		_ = store.Listen(ctx, func(n history.Notification) {
			f.gateway.HandleNotification(n)
			first()
		})
	}()
	DeferCleanup(func() {
		cancel()
		<-done
	})
	Eventually(listening).WithTimeout(20*time.Second).Should(BeClosed(), "the first notification")
}

// beRefused matches the error of a call that the gateway refuses with this code.
func beRefused(code connect.Code) gomegatypes.GomegaMatcher {
	return gcustom.MakeMatcher(func(err error) (bool, error) {
		return err != nil && connect.CodeOf(err) == code, nil
	}).WithTemplate("Expected the call {{.To}} be refused with {{.Data}}. Its error is\n    {{.Actual}}").WithTemplateData(code)
}
