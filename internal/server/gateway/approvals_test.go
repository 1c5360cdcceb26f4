package gateway_test

import (
	"context"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/testing/protocmp"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/server/gateway"
)

// answers stands in for the status of Tasks.
type answers struct {
	mu      sync.Mutex
	of      map[string][]gateway.Answer
	changed chan struct{}
}

func (a *answers) Answers(taskUID string) []gateway.Answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.of[taskUID]
}

func (a *answers) Changes(string) (<-chan struct{}, func()) { return a.changed, func() {} }

func (a *answers) set(taskUID string, given ...gateway.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of[taskUID] = given
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

var _ = Describe("Answers to tool calls that wait", func() {
	var f *fixture
	var given *answers
	BeforeEach(func() {
		given = &answers{of: map[string][]gateway.Answer{}, changed: make(chan struct{}, 1)}
		f = serve(often, func(o *gateway.Options) { o.Approvals = given })
	})

	// told reads the answers of a stream.
	told := func(ctx context.Context, token string) <-chan *daemonv1.AnswerRequest {
		GinkgoHelper()
		stream, err := f.client(token).Commands(ctx, connect.NewRequest(&daemonv1.CommandsRequest{}))
		Expect(err).NotTo(HaveOccurred())
		received := make(chan *daemonv1.AnswerRequest, 10)
		go func() {
			defer GinkgoRecover()
			defer close(received)
			for stream.Receive() {
				if a := stream.Msg().GetAnswerRequest(); a != nil {
					received <- a
				}
			}
			_ = stream.Close()
		}()
		return received
	}
	yes := gateway.Answer{RequestID: "1-aa", Approved: true, By: "ann", Reason: "checked"}
	no := gateway.Answer{RequestID: "1-bb", By: "bob"}
	saysYes := BeComparableTo(&daemonv1.AnswerRequest{Id: "1-aa", Approved: true, By: "ann", Reason: "checked"}, protocmp.Transform())
	saysNo := BeComparableTo(&daemonv1.AnswerRequest{Id: "1-bb", By: "bob"}, protocmp.Transform())

	It("reach the task's daemon once on a stream, and again on the next one, until they are followed", func() {
		given.set("uid-of-b", gateway.Answer{RequestID: "of-another"})
		given.set("uid-of-a", yes)
		ctx, cancel := context.WithCancel(f.ctx)
		received := told(ctx, "a1")
		Expect(next(received, "the answer that was given before")).To(saysYes)
		given.set("uid-of-a", yes, no)
		Expect(next(received, "the answer that is given later")).To(saysNo)
		cancel()

		given.set("uid-of-a", no)
		ctx, cancel = context.WithCancel(f.ctx)
		defer cancel()
		again := told(ctx, "a1")
		Expect(next(again, "the answer that is not followed yet")).To(saysNo)
		given.set("uid-of-a")
		given.set("uid-of-a", yes)
		Expect(next(again, "another answer")).To(saysYes)
	})
})
