package crash_test

import (
	"context"

	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/toolcall"
)

// supervises has the agent of a supervisor call each tool that changes something.
func supervises(r *run) {
	r.apply("lead", func(t *v1alpha1.Task) {
		t.Spec.Role, t.Spec.Contract = v1alpha1.RoleSupervisor, &v1alpha1.Contract{Name: "port"}
		t.Spec.Publish = &v1alpha1.Publish{Branch: "clew/port"}
	})
	r.works("lead", 1)
	lead := &caller{run: r, task: "lead"}
	lead.refused("task_create", `{"name":"../a","prompt":"A way out."}`)
	lead.answered("task_create", `{"name":"a","prompt":"Write a parser.","start_from":"self"}`)
	lead.answered("task_create", `{"name":"b","prompt":"Test it.","depends_on":["a"]}`)
	r.until("lead-b", v1alpha1.ReasonWaitingForTasks)
	r.until("lead-a", v1alpha1.ReasonRunning)
	r.works("lead-a", 2)
	lead.answered("phase_set", `{"phase":"Execute"}`)

	lead.answered("task_stop", `{"task":"a"}`)
	r.until("lead-a", v1alpha1.ReasonSuspended)
	lead.answered("task_resume", `{"task":"a","prompt":"Go on."}`)
	r.until("lead-a", v1alpha1.ReasonRunning)
	r.works("lead-a", 4)
	lead.answered("task_rewind", `{"task":"a","checkpoint":2,"prompt":"Otherwise."}`)
	r.until("lead-a", v1alpha1.ReasonRunning)

	lead.answered("task_fork", `{"task":"a","name":"ways","variants":[{"name":"fast","prompt":"Fast."},{"name":"small"}]}`)
	r.until("lead-fast", v1alpha1.ReasonRunning)
	r.until("lead-small", v1alpha1.ReasonRunning)
	r.completes("lead-small")
	lead.answered("publish", `{"task":"small"}`)
	lead.answered("task_stop", `{"task":"fast"}`)
	r.until("lead-fast", v1alpha1.ReasonSuspended)
	r.completes("lead-a")
	r.until("lead-b", v1alpha1.ReasonRunning)
	r.completes("lead-b")
	r.suspends("lead")
}

// caller is the agent of a supervisor, and the server between it and the manager.
type caller struct {
	*run
	task string
	// last is the call whose answer it has.
	last string
}

// answered has a tool called, and repeats the call until it has taken effect.
func (c *caller) answered(tool, arguments string) {
	c.Helper()
	c.Expect(c.answer(tool, arguments)).To(HaveField("Refused", BeFalse()), "%s %s", tool, arguments)
}

// refused has a tool called, and repeats the call until it is refused.
func (c *caller) refused(tool, arguments string) {
	c.Helper()
	c.Expect(c.answer(tool, arguments)).To(HaveField("Refused", BeTrue()), "%s %s", tool, arguments)
}

func (c *caller) answer(tool, arguments string) toolcall.Answer {
	c.Helper()
	canonical, err := toolcall.Canonical([]byte(arguments))
	c.Expect(err).NotTo(HaveOccurred())
	var call history.ToolCall
	c.Eventually(func() (*toolcall.Answer, error) {
		call, err = c.kubelet.calls(c.ctx, c.task, history.NewToolCall{Tool: tool, Arguments: canonical, Delivered: c.delivered()})
		return call.Answer, err
	}).ShouldNot(BeNil(), "%s %s is answered", tool, arguments)
	c.last = call.ID
	return *call.Answer
}

func (c *caller) delivered() []string {
	if c.last == "" {
		return nil
	}
	return []string{c.last}
}

// calls stores a call of a task's agent, or finds it.
func (k *kubelet) calls(ctx context.Context, task string, call history.NewToolCall) (history.ToolCall, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, p, err := k.running(ctx, task)
	if err != nil {
		return history.ToolCall{}, err
	}
	return k.store.CallTool(ctx, p.task(), p.config.Attempt, call)
}
