package gateway_test

import (
	"context"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"
	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/ship"
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/podidentity"
	servergateway "github.com/clew-dev/clew/internal/server/gateway"
)

// putBack is a gateway's store that can be replaced by an older copy.
type putBack struct {
	mu sync.Mutex
	servergateway.Store
}

func (p *putBack) to(t testing.TB, dsn string) {
	t.Helper()
	store, err := postgres.Open(t.Context(), dsn, testr.NewWithInterface(t, testr.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Store = store
}

func (p *putBack) now() servergateway.Store {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Store
}

func (p *putBack) Begin(ctx context.Context, task history.Task, attempt int64, source *history.Source, o history.BeginOptions) (history.TaskState, error) {
	return p.now().Begin(ctx, task, attempt, source, o)
}

func (p *putBack) Append(ctx context.Context, task history.Task, attempt int64, records []history.Record) (int64, error) {
	return p.now().Append(ctx, task, attempt, records)
}

func (p *putBack) TaskState(ctx context.Context, uid string) (history.TaskState, error) {
	return p.now().TaskState(ctx, uid)
}

func (p *putBack) Conversation(ctx context.Context, uid string, after int64, limit int) ([]history.Entry, error) {
	return p.now().Conversation(ctx, uid, after, limit)
}

// daemon returns the daemon's own client of the gateway.
func (f *fixture) daemon(token string, source *daemonapi.Source) *gatewayclient.Client {
	f.t.Helper()
	path := filepath.Join(f.t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
		f.t.Fatal(err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.server.Certificate().Raw})
	c, err := gatewayclient.New(gatewayclient.Config{URL: f.server.URL, CABundle: string(ca), TokenFile: path, Source: source})
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (f *fixture) texts(token string) []string {
	f.t.Helper()
	entries, err := f.conversation(token, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.GetMessage().GetText())
	}
	return out
}

// writing is the spool of a task whose agent produces output.
type writing struct {
	*spool.Spool
	t testing.TB
}

func newWriting(t testing.TB) writing {
	t.Helper()
	s, err := spool.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return writing{s, t}
}

func (w writing) say(text string) {
	w.t.Helper()
	m := &daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, Text: text}
	if err := w.Append(nil, &daemonv1.Record{Body: &daemonv1.Record_Message{Message: m}}); err != nil {
		w.t.Fatal(err)
	}
}

var _ = Describe("Daemons whose server or store is older or newer", func() {
	// The store is restored while the task's agent works: a running shipper sends
	// everything again by itself.
	It("a store that is older than the task gets its records again", func() {
		t := GinkgoTB()
		at := &putBack{}
		f := serve(t, pg.Database(t), func(o *servergateway.Options) { at.Store = o.Store; o.Store = at })
		s := newWriting(t)
		shipper := ship.New(f.daemon("a1", nil), s.Spool, testr.NewWithInterface(t, testr.Options{}))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- shipper.Run(ctx) }()
		s.say("1")
		if err := shipper.WaitStored(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		at.to(t, pg.Database(t))
		s.say("2")
		waiting, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := shipper.WaitStored(waiting, 2); err != nil {
			t.Error(err)
		}
		stop()
		<-done
		state, err := at.now().TaskState(t.Context(), "uid-of-a")
		Expect(err).NotTo(HaveOccurred())
		Expect(state).To(And(HaveField("LastSequence", int64(2)), HaveField("LostRecords", int64(0))), "the older store")
	})

	// The shipper of a fork is the first that such a store hears from.
	It("a fork keeps what it inherited in an older store", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		at := &putBack{}
		f := serve(t, dsn, func(o *servergateway.Options) { at.Store = o.Store; o.Store = at })
		source, s := newWriting(t), newWriting(t)
		source.say("of the source")
		point := &daemonv1.Record{Body: &daemonv1.Record_Checkpoint{Checkpoint: &daemonv1.CheckpointRecord{Number: 1}}}
		if err := source.Append(nil, point); err != nil {
			t.Fatal(err)
		}
		drain := func(token string, from *daemonapi.Source, of writing) error {
			return ship.New(f.daemon(token, from), of.Spool, testr.NewWithInterface(t, testr.Options{})).Drain(t.Context())
		}
		from := &daemonapi.Source{TaskUID: "uid-of-a", Checkpoint: 1, IncludeConversation: true}
		s.say("of the fork")
		for _, err := range []error{drain("a1", nil, source), drain("b1", from, s)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		want := []string{"of the source", "of the fork"}
		if d := cmp.Diff(want, f.texts("b1")); d != "" {
			t.Fatalf("conversation (-want +got):\n%s", d)
		}
		// A copy without the source: the fork waits until the source is sent again.
		at.to(t, pg.Database(t))
		if err := drain("b1", from, s); err == nil {
			t.Error("a fork has begun without what it inherits")
		}
		begun := f.daemon("b1", from)
		begun.MarkBegun()
		for range 2 {
			if _, err := begun.Begin(t.Context()); !errors.Is(err, gatewayclient.ErrSourceAwaited) {
				t.Errorf("a fork that has begun before does not wait for its source: %v", err)
			}
		}
		for _, err := range []error{drain("a1", nil, source), drain("b1", from, s)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if d := cmp.Diff(want, f.texts("b1")); d != "" {
			t.Errorf("conversation (-want +got):\n%s", d)
		}
	})

	// A daemon of an older release may not name its source.
	It("a fork does not begin without its source", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t), func(o *servergateway.Options) { o.Tasks = forks{} })
		begin := func(source *daemonv1.Source) connect.Code {
			_, err := f.client("b1").Begin(t.Context(), connect.NewRequest(&daemonv1.BeginRequest{Source: source}))
			if err == nil {
				return 0
			}
			return connect.CodeOf(err)
		}
		if code := begin(nil); code != connect.CodeNotFound {
			t.Errorf("unknown, without its source: %v", code)
		}
		if code := begin(&daemonv1.Source{TaskUid: "uid-of-a", Checkpoint: 1}); code != 0 {
			t.Errorf("with its source: %v", code)
		}
		if code := begin(nil); code != 0 {
			t.Errorf("known, without its source: %v", code)
		}
	})

	// Each pod of the fork asks a few times, and every other response is a different
	// error.
	It("the store counts how long a fork waits for its source", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		f := serve(t, dsn)
		conn, err := pgx.Connect(t.Context(), dsn)
		Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { conn.Close(context.Background()) })
		from := &daemonapi.Source{TaskUID: "uid-of-a", Checkpoint: 1, IncludeConversation: true, Position: 40}
		var waited time.Duration
		ask := func(c *gatewayclient.Client) error {
			_, err := c.Begin(t.Context())
			return err
		}
		for ; waited < 6*time.Minute; waited += time.Minute {
			c := f.daemon("b1", from)
			c.MarkBegun()
			Expect(ask(c)).To(MatchError(gatewayclient.ErrSourceAwaited), "after %s", waited)
			busy, stop := context.WithCancel(t.Context())
			stop()
			_, err := c.Begin(busy)
			Expect(err).NotTo(MatchError(gatewayclient.ErrSourceAwaited))
			Expect(ask(c)).To(MatchError(gatewayclient.ErrSourceAwaited), "after %s", waited)
			_, err = conn.Exec(t.Context(), "UPDATE awaited_sources SET since = since - interval '1 min', seen = seen - interval '1 min'")
			Expect(err).NotTo(HaveOccurred())
		}
		c := f.daemon("b1", from)
		c.MarkBegun()
		Expect(ask(c)).To(Succeed(), "after %s", waited)
	})
})

// forks stands in for a cluster in which every Task begins with another task's
// conversation.
type forks struct{}

func (forks) CheckTask(context.Context, podidentity.Identity) error        { return nil }
func (forks) Inherits(context.Context, podidentity.Identity) (bool, error) { return true, nil }
