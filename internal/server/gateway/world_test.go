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
	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
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

func (gone) Inherits(context.Context, podidentity.Identity) (bool, error) { return false, nil }

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

// fixture is a gateway behind HTTP/2 and TLS, as daemons see it.
type fixture struct {
	t       testing.TB
	server  *httptest.Server
	gateway *gateway.Gateway
	board   *checkpointrequests.Board
}

func serve(t testing.TB, dsn string, change ...func(*gateway.Options)) *fixture {
	t.Helper()
	log := testr.NewWithInterface(t, testr.Options{})
	store, err := postgres.Open(t.Context(), dsn, log)
	if err != nil {
		t.Fatal(err)
	}
	spoofed := identity("a", 9)
	spoofed.Namespace = "elsewhere"
	board := checkpointrequests.New()
	options := gateway.Options{
		Store: store, Requests: board, Log: log, Registerer: prometheus.NewRegistry(),
		Authenticator: tokens{"a1": identity("a", 1), "a2": identity("a", 2), "b1": identity("b", 1), "spoofed": spoofed},
	}
	for _, f := range change {
		f(&options)
	}
	f := &fixture{t: t, gateway: gateway.New(options), board: board}
	mux := http.NewServeMux()
	mux.Handle(f.gateway.Handler())
	f.server = httptest.NewUnstartedServer(mux)
	f.server.EnableHTTP2 = true
	f.server.StartTLS()
	t.Cleanup(func() {
		f.gateway.Close()
		f.server.Close()
		store.Close()
	})
	return f
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

func (f *fixture) client(token string) daemonv1connect.DaemonServiceClient {
	client := &http.Client{Transport: withToken{token, f.server.Client().Transport}}
	return daemonv1connect.NewDaemonServiceClient(client, f.server.URL)
}

func (f *fixture) begin(token string) *daemonv1.BeginResponse {
	f.t.Helper()
	response, err := f.client(token).Begin(f.t.Context(), connect.NewRequest(&daemonv1.BeginRequest{DaemonVersion: "test"}))
	if err != nil {
		f.t.Fatalf("begin: %v", err)
	}
	return response.Msg
}

func (f *fixture) append(token string, records ...*daemonv1.Record) (int64, error) {
	response, err := f.client(token).Append(f.t.Context(), connect.NewRequest(&daemonv1.AppendRequest{Records: records}))
	if err != nil {
		return 0, err
	}
	return response.Msg.GetLastSequence(), nil
}

func (f *fixture) conversation(token string, after int64) ([]*daemonv1.ConversationEntry, error) {
	stream, err := f.client(token).Conversation(f.t.Context(), connect.NewRequest(&daemonv1.ConversationRequest{AfterPosition: after}))
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

func text(sequence int64, role daemonv1.Role, text string) *daemonv1.Record {
	return message(sequence, &daemonv1.Message{Role: role, Text: text})
}

func message(sequence int64, m *daemonv1.Message) *daemonv1.Record {
	return &daemonv1.Record{Sequence: sequence, Time: timestamppb.Now(), Attempt: 1, Body: &daemonv1.Record_Message{Message: m}}
}

// commands reads a stream into a channel; empty commands are left out.
func (f *fixture) commands(ctx context.Context, token string) (received <-chan *daemonv1.TakeCheckpoint, ended <-chan error) {
	f.t.Helper()
	stream, err := f.client(token).Commands(ctx, connect.NewRequest(&daemonv1.CommandsRequest{}))
	if err != nil {
		f.t.Fatal(err)
	}
	if !stream.Receive() || stream.Msg().GetCommand() != nil {
		f.t.Fatalf("the stream does not begin with an empty command: %v, %v", stream.Msg(), stream.Err())
	}
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

func expect(t testing.TB, commands <-chan *daemonv1.TakeCheckpoint, name string) {
	t.Helper()
	select {
	case c := <-commands:
		want := &daemonv1.TakeCheckpoint{Name: name, Uid: "uid-" + name, Message: "please"}
		if d := cmp.Diff(want, c, protocmp.Transform()); d != "" {
			t.Errorf("command (-want +got):\n%s", d)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("did not receive %s", name)
	}
}

// listen subscribes the gateway to changes, as the server does, and returns once it is
// subscribed.
func (f *fixture) listen(dsn string) {
	f.t.Helper()
	store, err := postgres.Open(f.t.Context(), dsn, testr.NewWithInterface(f.t, testr.Options{}))
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.t.Context())
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
	f.t.Cleanup(func() {
		cancel()
		<-done
		store.Close()
	})
	<-listening
}

func expectAborted(t testing.TB, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		if connect.CodeOf(err) != connect.CodeAborted {
			t.Errorf("ended with %v, want it aborted", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the stream of the older attempt did not end")
	}
}
