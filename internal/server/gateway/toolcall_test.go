package gateway_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"

	"github.com/clew-dev/clew/api/v1alpha1"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/podidentity"
	"github.com/clew-dev/clew/internal/server/gateway"
	"github.com/clew-dev/clew/internal/toolcall"
)

// supervisors stands in for a cluster in which the task a is a supervisor, and all others are workers.
type supervisors struct {
	gone
	given []v1alpha1.AgentTool
}

func (supervisors) CheckTask(context.Context, podidentity.Identity) error { return nil }

func (s supervisors) SupervisorTools(_ context.Context, id podidentity.Identity) ([]v1alpha1.AgentTool, bool, error) {
	if id.TaskName != "a" {
		return nil, false, nil
	}
	return s.given, true, nil
}

// telling answers what it was asked.
type telling struct{}

func (telling) Answer(_ context.Context, supervisor history.Task, tool v1alpha1.AgentTool, arguments []byte) (toolcall.Answer, error) {
	return toolcall.Answer{Text: supervisor.Name + " asked " + string(tool), Data: arguments}, nil
}

var _ = Describe("A call of a supervisor's tool", func() {
	var (
		f     *fixture
		store *postgres.Store
	)
	BeforeEach(func() {
		dsn := pg.Database(GinkgoTB())
		f = serveAt(dsn, func(o *gateway.Options) {
			store = o.Store.(*postgres.Store)
			given := v1alpha1.SupervisorTools()
			o.Tasks, o.Family = supervisors{given: given[:len(given)-1]}, telling{}
		})
		f.begin("a1")
		f.begin("b1")
	})
	call := func(token string, m *daemonv1.CallToolRequest) (*daemonv1.CallToolResponse, error) {
		response, err := f.client(token).CallTool(f.ctx, connect.NewRequest(m))
		if err != nil {
			return nil, err
		}
		return response.Msg, nil
	}
	create := func(arguments string) *daemonv1.CallToolRequest {
		return &daemonv1.CallToolRequest{Tool: "task_create", Arguments: []byte(arguments)}
	}
	// calling makes a call that waits for an answer, which never comes if there is an error.
	calling := func(m *daemonv1.CallToolRequest) <-chan *daemonv1.CallToolResponse {
		answered := make(chan *daemonv1.CallToolResponse, 1)
		go func() {
			if response, err := call("a1", m); err == nil {
				answered <- response
			}
		}()
		return answered
	}
	pending := func() []history.ToolCall {
		GinkgoHelper()
		calls, _, err := store.PendingToolCalls(f.ctx, 0, 100)
		Expect(err).NotTo(HaveOccurred())
		return calls
	}
	stored := func(n int) []history.ToolCall {
		GinkgoHelper()
		Eventually(pending).WithTimeout(20 * time.Second).Should(HaveLen(n))
		return pending()
	}

	When("it changes something", func() {
		// The manager hears of calls, and servers of answers.
		BeforeEach(func() {
			ctx, cancel := context.WithCancel(f.ctx)
			listening, done := make(chan struct{}), make(chan struct{})
			first := sync.OnceFunc(func() { close(listening) })
			go func() {
				defer close(done)
				_ = store.ListenToolCalls(ctx, func(n history.ToolCallNotification) {
					f.gateway.HandleToolCall(n)
					first()
				})
			}()
			DeferCleanup(func() {
				cancel()
				<-done
			})
			Eventually(listening).WithTimeout(20 * time.Second).Should(BeClosed())
		})

		It("is stored for the manager, and gets its answer", func() {
			answered := calling(create(`{"prompt": "go", "name": "parser"}`))
			waiting := stored(1)[0]
			Expect(waiting.Task).To(Equal(history.Task{Namespace: "team", Name: "a", UID: "uid-of-a"}))
			Expect(string(waiting.Arguments)).To(Equal(`{"name":"parser","prompt":"go"}`))
			Consistently(answered, "100ms").ShouldNot(Receive())
			Expect(store.AnswerToolCall(f.ctx, waiting.ID, toolcall.Answer{Text: "it is made", Data: []byte(`{"task":"a-parser"}`)})).To(Succeed())
			response := next(answered, "the answer")
			Expect(response.GetId()).To(Equal(waiting.ID))
			Expect(response.GetText()).To(Equal("it is made"))
			Expect(json.Valid(response.GetData())).To(BeTrue())

			By("repeating it, as an agent that was killed does, in another order")
			Expect(call("a1", create(`{"name":"parser", "prompt":"go"}`))).To(HaveField("Text", "it is made"))

			By("calling again after the answer has reached the agent")
			again := create(`{"name":"parser","prompt":"go"}`)
			again.Delivered = []string{waiting.ID}
			answered = calling(again)
			another := stored(1)[0]
			Expect(another.ID).NotTo(Equal(waiting.ID))
			Expect(store.AnswerToolCall(f.ctx, another.ID, toolcall.Answer{Refused: true, Text: "it exists"})).To(Succeed())
			Expect(next(answered, "the refusal")).To(And(HaveField("Refused", true), HaveField("Text", "it exists")))
		})

		It("looks again when what was announced may have been missed", func() {
			answered := calling(create(`{}`))
			waiting := stored(1)[0]
			Expect(store.AnswerToolCall(f.ctx, waiting.ID, toolcall.Answer{Text: "done"})).To(Succeed())
			f.gateway.HandleToolCall(history.ToolCallNotification{}) // as after the connection was lost
			Expect(next(answered, "the answer").GetText()).To(Equal("done"))
		})

		It("leaves room for other requests while it waits", func() {
			var waiting []<-chan *daemonv1.CallToolResponse
			for n := range 4 {
				waiting = append(waiting, calling(create(`{"name":"`+strings.Repeat("x", n+1)+`"}`)))
			}
			calls := stored(4)
			f.append("a1", text(1, daemonv1.Role_ROLE_USER, "recorded meanwhile"))
			for _, c := range calls {
				Expect(store.AnswerToolCall(f.ctx, c.ID, toolcall.Answer{Text: "done"})).To(Succeed())
			}
			for _, w := range waiting {
				Expect(next(w, "a call that waits").GetText()).To(Equal("done"))
			}
		})

		It("is pending when the server shuts down, or too many wait", func() {
			var waiting []<-chan *daemonv1.CallToolResponse
			for n := range 4 {
				waiting = append(waiting, calling(create(`{"name":"`+strings.Repeat("x", n+1)+`"}`)))
			}
			stored(4)
			var fifth *daemonv1.CallToolResponse
			Eventually(func() bool {
				select {
				case fifth = <-calling(create(`{"name":"one more"}`)):
					return true
				case <-time.After(time.Second): // the others do not wait yet
					return false
				}
			}).WithTimeout(20 * time.Second).Should(BeTrue())
			Expect(fifth).To(And(HaveField("Pending", true), HaveField("Id", Not(BeEmpty()))))
			f.gateway.Close()
			for _, w := range waiting {
				Expect(next(w, "a call that waits")).To(HaveField("Pending", true))
			}
		})

		It("is refused in words with an id that another call has", func() {
			m := create(`{"name":"x"}`)
			m.CallId = "mine"
			answered := calling(m)
			Expect(store.AnswerToolCall(f.ctx, stored(1)[0].ID, toolcall.Answer{Text: "done"})).To(Succeed())
			next(answered, "the answer")
			m.Arguments = []byte(`{"name":"y"}`)
			Expect(call("a1", m)).To(And(HaveField("Refused", true), HaveField("Text", ContainSubstring(`"mine" is that of an earlier call`))))
		})

		It("is an error once the attempt is over", func() {
			f.begin("a2")
			Expect(call("a1", create(`{}`))).Error().To(beRefused(connect.CodeAborted))
			Expect(call("spoofed", create(`{}`))).Error().To(beRefused(connect.CodeNotFound))
			Expect(call("stranger", create(`{}`))).Error().To(beRefused(connect.CodePermissionDenied))
		})
	})

	It("that reads is answered at once, and stored nowhere", func() {
		for _, tool := range []v1alpha1.AgentTool{v1alpha1.ToolTaskList, v1alpha1.ToolTaskWait, v1alpha1.ToolTaskHistory, v1alpha1.ToolTaskDiff} {
			response, err := call("a1", &daemonv1.CallToolRequest{Tool: string(tool), Arguments: []byte(`{"task":"parser"}`)})
			Expect(err).NotTo(HaveOccurred())
			Expect(response.GetText()).To(Equal("a asked " + string(tool)))
			Expect(string(response.GetData())).To(Equal(`{"task":"parser"}`))
			Expect(response.GetId()).To(BeEmpty())
		}
		Expect(pending()).To(BeEmpty())
		f.begin("a2")
		Expect(call("a1", &daemonv1.CallToolRequest{Tool: "task_list", Arguments: []byte(`{}`)})).Error().To(beRefused(connect.CodeAborted))
	})

	DescribeTable("is refused in words for the model", func(token, tool, arguments, id, want string) {
		response, err := call(token, &daemonv1.CallToolRequest{Tool: tool, Arguments: []byte(arguments), CallId: id})
		Expect(err).NotTo(HaveOccurred())
		Expect(response).To(And(HaveField("Refused", true), HaveField("Text", ContainSubstring(want))))
		Expect(pending()).To(BeEmpty())
	},
		Entry("of a worker", "b1", "task_create", `{}`, "", "this task is a worker"),
		Entry("of a worker that reads", "b1", "task_list", `{}`, "", "this task is a worker"),
		Entry("of a tool that the spec does not give", "a1", "publish", `{}`, "", "spec.publish"),
		Entry("of a tool that does not exist", "a1", "task_delete", `{}`, "", `no tool "task_delete"`),
		Entry("of a tool that is not a supervisor's", "a1", "checkpoint", `{}`, "", `no tool "checkpoint"`),
		Entry("without arguments", "a1", "task_create", ``, "", "cannot be read"),
		Entry("whose arguments are no object", "a1", "task_create", `[]`, "", "no JSON object"),
		Entry("whose arguments are too long", "a1", "task_create", `{"prompt":"`+strings.Repeat("x", toolcall.MaxArguments)+`"}`, "", "may have 163840"),
		Entry("with an id that has no such form", "a1", "task_create", `{}`, "-", "call_id must be"),
	)
})
