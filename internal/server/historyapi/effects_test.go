package historyapi_test

import (
	"context"
	"errors"
	"net/http"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"k8s.io/apiserver/pkg/authentication/user"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/historyapi"
)

var _ = Describe("What the calls of a supervisor's tools did", func() {
	var (
		f    *fixture
		said *conversations
	)
	BeforeEach(func() {
		said = &conversations{branches: map[string][]history.Entry{}, active: "main"}
		said.say("main", "", 0, "1", "2", "3")
		f = quietWith(said)
		said.branches["main"][1].Effects = []history.CallEffect{
			{Tool: "task_create", Task: "a-parser", UID: "u", Phase: "Plan", State: "Completed"},
			{Tool: "task_rewind", Task: "a-docs", UID: "v", Checkpoint: 3, State: "Running", TakenBack: true},
			{Tool: "phase_set", Phase: "Execute"},
			{Tool: "task_create", Task: "a-parser", UID: "u", Repeated: true},
		}
	})

	It("is at the message with the call", func() {
		list := read[historyv1alpha1.ConversationList](f, conversationPath)
		Expect(list.Items[0].Effects).To(BeEmpty())
		Expect(list.Items[1].Effects).To(Equal([]historyv1alpha1.Effect{
			{Operation: "Created", Name: "a-parser", UID: "u", Phase: "Plan", Outcome: "Completed"},
			{Operation: "Rewound", Name: "a-docs", UID: "v", Checkpoint: 3, Outcome: "Running", TakenBack: true},
			{Operation: "PhaseSet", Phase: "Execute"},
			{Operation: "Repeated", Name: "a-parser", UID: "u"},
		}))
	})

	It("says nothing of what has become of tasks to somebody who may not list them", func() {
		f.options.Authorizer = rights{"ann get tasks/conversation team/a": true}
		f.options.Registerer = nil
		f.handler = handlerOf(f.options)
		Expect(read[historyv1alpha1.ConversationList](f, conversationPath).Items[1].Effects).To(HaveEach(HaveField("Outcome", "")))
	})

	It("is told of the task that was made, with the message that did", func() {
		f.archive.makers = map[string]*history.MadeBy{"new": {
			Task: history.Task{Namespace: "team", Name: "lead", UID: "w"}, Tool: "task_fork", Phase: "Plan", Branch: "branch-2", Position: 12, TakenBack: true,
		}}
		Expect(read[historyv1alpha1.TaskHistory](f, historyPath).MadeBy).To(Equal(&historyv1alpha1.MadeBy{
			Name: "lead", UID: "w", Operation: "Forked", Phase: "Plan", Branch: "branch-2", Position: 12, TakenBack: true,
		}))
		Expect(read[historyv1alpha1.TaskHistory](f, historyPath+"?uid=old").MadeBy).To(BeNil())
	})

	It("waits while it cannot be decided who may know what has become of them", func() {
		f.options.Authorizer = undecided{rights{"ann get tasks/conversation team/a": true}}
		f.options.Registerer = nil
		f.handler = handlerOf(f.options)
		Expect(f.get("ann", conversationPath)).To(HaveHTTPStatus(http.StatusServiceUnavailable))
	})
})

// undecided are rights of which nobody can say who may list anything.
type undecided struct{ rights }

func (u undecided) Authorize(ctx context.Context, who user.Info, a historyapi.Access) (bool, string, error) {
	if a.Verb == "list" {
		return false, "", errors.New("the API server is down")
	}
	return u.rights.Authorize(ctx, who, a)
}
