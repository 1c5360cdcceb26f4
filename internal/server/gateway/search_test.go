package gateway_test

import (
	"context"
	"fmt"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/server/gateway"
)

// heldSearches is a store that searches until it is released, and says in which namespaces.
type heldSearches struct {
	gateway.Store
	begun   chan string
	release chan struct{}
}

func (h heldSearches) Search(ctx context.Context, query history.SearchQuery) (history.SearchPage, error) {
	h.begun <- query.Namespace
	select {
	case <-h.release:
	case <-ctx.Done():
	}
	return history.SearchPage{}, ctx.Err()
}

// slowSearches is a store whose searches take longer than they may.
type slowSearches struct{ gateway.Store }

func (slowSearches) Search(context.Context, history.SearchQuery) (history.SearchPage, error) {
	return history.SearchPage{}, fmt.Errorf("%w: search", history.ErrSlow)
}

var _ = Describe("A search of an agent", func() {
	var f *fixture
	search := func(token, query string) (*daemonv1.SearchHistoryResponse, error) {
		response, err := f.client(token).SearchHistory(f.ctx, connect.NewRequest(&daemonv1.SearchHistoryRequest{Query: query, Limit: 5}))
		if err != nil {
			return nil, err
		}
		return response.Msg, nil
	}
	found := func(token, query string) []string {
		GinkgoHelper()
		response, err := search(token, query)
		Expect(err).NotTo(HaveOccurred())
		texts := []string{}
		for _, hit := range response.GetHits() {
			texts = append(texts, hit.GetSnippet())
		}
		return texts
	}
	BeforeEach(func() {
		var store *postgres.Store
		f = serve(func(o *gateway.Options) { store = o.Store.(*postgres.Store) })
		f.begin("a1")
		f.begin("b1")
		f.append("a1", text(1, daemonv1.Role_ROLE_USER, "the needle"), &daemonv1.Record{Sequence: 2, Body: &daemonv1.Record_Checkpoint{Checkpoint: &daemonv1.CheckpointRecord{Number: 1}}}, text(3, daemonv1.Role_ROLE_ASSISTANT, "a taken back needle"))
		f.move("a1", &daemonv1.MoveConversationRequest{OperationId: "Rewind/r", Checkpoint: 1})
		f.append("a1", text(4, daemonv1.Role_ROLE_ASSISTANT, "a new needle"))
		f.append("b1", text(1, daemonv1.Role_ROLE_USER, "another needle"))
		Expect(store.Index(f.ctx)).Error().NotTo(HaveOccurred())
	})

	It("finds what its own conversation has, as it stands", func() {
		Expect(found("a1", "needle")).To(ConsistOf("the \uE000needle\uE001", "a new \uE000needle\uE001"))
		Expect(found("b1", "needle")).To(ConsistOf("another \uE000needle\uE001"))
		Expect(found("b1", "new")).To(BeEmpty())
	})

	It("is refused without words, to strangers, and once the attempt is over", func() {
		Expect(search("a1", "  ")).Error().To(beRefused(connect.CodeInvalidArgument))
		Expect(search("stranger", "needle")).Error().To(beRefused(connect.CodePermissionDenied))
		f.begin("a2")
		Expect(search("a1", "needle")).Error().To(beRefused(connect.CodeAborted))
		Expect(found("a2", "needle")).To(HaveLen(2))
	})

	It("holds up nobody's records, however many there are", func() {
		const tasks = 10
		held := heldSearches{Store: openStore(pg.Database(GinkgoTB())), begun: make(chan string, tasks), release: make(chan struct{})}
		known := tokens{"z1": {Namespace: "elsewhere", TaskName: "z", TaskUID: "uid-of-z", Attempt: 1}}
		for n := range tasks {
			known[fmt.Sprint("t", n)] = identity(fmt.Sprint("t", n), 1)
		}
		f = serve(func(o *gateway.Options) { o.Store, o.Authenticator = held, known })
		var searches sync.WaitGroup
		DeferCleanup(func() { close(held.release); searches.Wait() })
		for token := range known {
			f.begin(token)
		}
		for n := range tasks {
			searches.Go(func() { _, _ = search(fmt.Sprint("t", n), "needle") })
		}
		Eventually(held.begun, "10s").Should(Receive(Equal("team")))
		for n := range tasks {
			Expect(f.append(fmt.Sprint("t", n), text(1, daemonv1.Role_ROLE_USER, "hello"))).To(BeEquivalentTo(1))
		}
		Expect(held.begun).To(BeEmpty(), "a namespace searches once at a time")
		searches.Go(func() { _, _ = search("z1", "needle") })
		Eventually(held.begun, "10s").Should(Receive(Equal("elsewhere")), "and another one beside it")
	})

	It("that takes too long is told to search for other words", func() {
		slow := slowSearches{openStore(pg.Database(GinkgoTB()))}
		f = serve(func(o *gateway.Options) { o.Store = slow })
		f.begin("a1")
		Expect(search("a1", "the")).Error().To(And(beRefused(connect.CodeResourceExhausted), MatchError(ContainSubstring("search for rarer words"))))
	})

	It("finds nothing of a task of the same UID elsewhere", func() {
		Expect(search("spoofed", "needle")).To(HaveField("Hits", BeEmpty()))
	})
})
