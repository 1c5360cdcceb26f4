package gateway_test

import (
	"context"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/gateway"
)

// askers stands in for those who ask for files as they are.
type askers struct {
	ids     chan string
	of      string
	answers []history.LiveMessage
}

func (a *askers) Requests(taskUID string) (<-chan string, func()) {
	a.of = taskUID
	return a.ids, func() {}
}

func (a *askers) Answer(_ context.Context, answer history.LiveMessage) error {
	a.answers = append(a.answers, answer)
	return nil
}

var _ = Describe("A request for the files as they are", func() {
	var f *fixture
	var who *askers
	BeforeEach(func() {
		who = &askers{ids: make(chan string, 1)}
		f = serve(func(o *gateway.Options) { o.Live = who })
	})

	report := func(id, commit, problem string) error {
		_, err := f.client("a1").ReportLive(f.ctx, connect.NewRequest(&daemonv1.ReportLiveRequest{Id: id, Commit: commit, Problem: problem, RetryAfterSeconds: 1 << 30}))
		return err
	}

	It("reaches the task's daemon, and its answer who asked", func() {
		stream, err := f.client("a1").Commands(f.ctx, connect.NewRequest(&daemonv1.CommandsRequest{}))
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(stream.Close)
		Expect(stream.Receive()).To(BeTrue(), "the heartbeat")
		who.ids <- "request"
		Expect(stream.Receive()).To(BeTrue())
		Expect(stream.Msg().GetPublishLive().GetId()).To(Equal("request"))
		Expect(who.of).To(Equal("uid-of-a"))

		commit := strings.Repeat("ab", 20)
		Expect(report("request", commit, "")).To(Succeed())
		Expect(report("request", "", strings.Repeat("x\x00", 2000))).To(Succeed())
		Expect(who.answers).To(HaveLen(2))
		Expect(who.answers[0]).To(Equal(history.LiveMessage{TaskUID: "uid-of-a", ID: "request", Commit: commit, RetryAfterSeconds: 600}), "the task is that of the token")
		Expect(len(who.answers[1].Problem)).To(BeNumerically("<=", 1024))
		Expect(who.answers[1].Problem).NotTo(ContainSubstring("\x00"))
	})

	It("is not answered by what is no commit", func() {
		Expect(report("request", "HEAD", "")).To(beRefused(connect.CodeInvalidArgument))
		Expect(who.answers).To(BeEmpty())
	})
})
