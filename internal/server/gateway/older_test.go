package gateway_test

import (
	"context"
	"encoding/pem"
	"os"
	"path/filepath"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/ship"
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/podidentity"
	servergateway "github.com/clew-dev/clew/internal/server/gateway"
)

// putBack is a gateway's store that can be replaced by an older copy.
type putBack struct {
	mu sync.Mutex
	servergateway.Store
}

func (p *putBack) to(dsn string) {
	GinkgoHelper()
	store := openStore(dsn)
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
	GinkgoHelper()
	path := filepath.Join(GinkgoT().TempDir(), "token")
	Expect(os.WriteFile(path, []byte(token), 0o600)).To(Succeed())
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.server.Certificate().Raw})
	c, err := gatewayclient.New(gatewayclient.Config{URL: f.server.URL, CABundle: string(ca), TokenFile: path, Source: source})
	Expect(err).NotTo(HaveOccurred())
	return c
}

// begunDaemon returns the client of a daemon whose task has begun before.
func (f *fixture) begunDaemon(token string, source *daemonapi.Source) *gatewayclient.Client {
	GinkgoHelper()
	c := f.daemon(token, source)
	c.MarkBegun()
	return c
}

// writing is the spool of a task whose agent produces output.
type writing struct{ *spool.Spool }

func newWriting() writing {
	GinkgoHelper()
	s, err := spool.Open(GinkgoT().TempDir())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(s.Close)
	return writing{s}
}

func (w writing) say(text string) {
	GinkgoHelper()
	w.record(&daemonv1.Record{Body: &daemonv1.Record_Message{Message: &daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, Text: text}}})
}

func (w writing) record(record *daemonv1.Record) {
	GinkgoHelper()
	Expect(w.Append(nil, record)).To(Succeed())
}

var _ = Describe("Daemons whose server or store is older or newer", func() {
	// The store is restored while the task's agent works: a running shipper sends
	// everything again by itself.
	It("a store that is older than the task gets its records again", func() {
		at := &putBack{}
		f := serve(func(o *servergateway.Options) { at.Store = o.Store; o.Store = at })
		s := newWriting()
		shipper := ship.New(f.daemon("a1", nil), s.Spool, testLog())
		ctx, stop := context.WithCancel(f.ctx)
		done := make(chan error, 1)
		go func() { done <- shipper.Run(ctx) }()
		s.say("1")
		Expect(shipper.WaitStored(f.ctx, 1)).To(Succeed())

		By("restoring an older copy of the store")
		at.to(pg.Database(GinkgoTB()))
		s.say("2")
		waiting, cancel := context.WithTimeout(f.ctx, time.Minute)
		defer cancel()
		Expect(shipper.WaitStored(waiting, 2)).To(Succeed())
		stop()
		next(done, "the end of the shipper")
		state, err := at.now().TaskState(f.ctx, "uid-of-a")
		Expect(err).NotTo(HaveOccurred())
		Expect(state).To(And(HaveField("LastSequence", int64(2)), HaveField("LostRecords", int64(0))), "the older store")
	})

	// The shipper of a fork is the first that such a store hears from.
	It("a fork keeps what it inherited in an older store", func() {
		at := &putBack{}
		f := serve(func(o *servergateway.Options) { at.Store = o.Store; o.Store = at })
		from := &daemonapi.Source{TaskUID: "uid-of-a", Checkpoint: 1, IncludeConversation: true}
		source, fork := newWriting(), newWriting()
		drain := func(token string, from *daemonapi.Source, of writing) error {
			return ship.New(f.daemon(token, from), of.Spool, testLog()).Drain(f.ctx)
		}
		want := []string{"of the source", "of the fork"}

		By("recording a task and its fork")
		source.say("of the source")
		source.record(&daemonv1.Record{Body: &daemonv1.Record_Checkpoint{Checkpoint: &daemonv1.CheckpointRecord{Number: 1}}})
		fork.say("of the fork")
		Expect(drain("a1", nil, source)).To(Succeed())
		Expect(drain("b1", from, fork)).To(Succeed())
		Expect(f.texts("b1")).To(Equal(want))

		By("restoring a copy without the source: the fork waits until the source is sent again")
		at.to(pg.Database(GinkgoTB()))
		Expect(drain("b1", from, fork)).NotTo(Succeed(), "a fork has begun without what it inherits")
		begun := f.begunDaemon("b1", from)
		for range 2 {
			_, err := begun.Begin(f.ctx)
			Expect(err).To(MatchError(gatewayclient.ErrSourceAwaited), "a fork that has begun before waits for its source")
		}

		By("sending the source again")
		Expect(drain("a1", nil, source)).To(Succeed())
		Expect(drain("b1", from, fork)).To(Succeed())
		Expect(f.texts("b1")).To(Equal(want))
	})

	// A daemon of an older release may not name its source.
	It("a fork does not begin without its source", func() {
		f := serve(func(o *servergateway.Options) { o.Tasks = forks{} })
		_, err := f.tryBegin("b1", nil)
		Expect(err).To(beRefused(connect.CodeNotFound), "unknown, without its source")
		f.beginFrom("b1", &daemonv1.Source{TaskUid: "uid-of-a", Checkpoint: 1})
		_, err = f.tryBegin("b1", nil)
		Expect(err).NotTo(HaveOccurred(), "known, without its source")
	})

	// Each pod of the fork asks a few times, and every other response is a different
	// error.
	It("the store counts how long a fork waits for its source", func() {
		dsn := pg.Database(GinkgoTB())
		f := serveAt(dsn)
		conn, err := pgx.Connect(f.ctx, dsn)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) { conn.Close(ctx) })
		from := &daemonapi.Source{TaskUID: "uid-of-a", Checkpoint: 1, IncludeConversation: true, Position: 40}
		var waited time.Duration
		ask := func(c *gatewayclient.Client) error {
			_, err := c.Begin(f.ctx)
			return err
		}
		for ; waited < 6*time.Minute; waited += time.Minute {
			c := f.begunDaemon("b1", from)
			Expect(ask(c)).To(MatchError(gatewayclient.ErrSourceAwaited), "after %s", waited)
			busy, stop := context.WithCancel(f.ctx)
			stop()
			_, err := c.Begin(busy)
			Expect(err).NotTo(MatchError(gatewayclient.ErrSourceAwaited))
			Expect(ask(c)).To(MatchError(gatewayclient.ErrSourceAwaited), "after %s", waited)
			_, err = conn.Exec(f.ctx, "UPDATE awaited_sources SET since = since - interval '1 min', seen = seen - interval '1 min'")
			Expect(err).NotTo(HaveOccurred())
		}
		Expect(ask(f.begunDaemon("b1", from))).To(Succeed(), "after %s", waited)
	})
})

// forks stands in for a cluster in which every Task begins with another task's
// conversation.
type forks struct{}

func (forks) CheckTask(context.Context, podidentity.Identity) error          { return nil }
func (forks) Contract(context.Context, podidentity.Identity) (string, error) { return "", nil }

func (forks) Inherits(context.Context, podidentity.Identity) (bool, error)    { return true, nil }
func (forks) Source(context.Context, podidentity.Identity) (string, error)    { return "", nil }
func (forks) Adopted(context.Context, podidentity.Identity) ([]string, error) { return nil, nil }
func (forks) SupervisorTools(context.Context, podidentity.Identity) ([]v1alpha1.AgentTool, bool, error) {
	return nil, false, nil
}
