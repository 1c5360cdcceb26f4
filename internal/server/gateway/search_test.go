package gateway_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/server/gateway"
)

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

	It("finds nothing of a task of the same UID elsewhere", func() {
		Expect(search("spoofed", "needle")).To(HaveField("Hits", BeEmpty()))
	})
})
