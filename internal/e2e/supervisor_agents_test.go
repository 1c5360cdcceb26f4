//go:build e2e && soak

package e2e

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// leadsByTools is leadsWork as calls of tools, for a model.
func leadsByTools() script {
	const all, one = `All \d+ have stopped`, "It has stopped"
	create := func(name string, more map[string]any) served {
		input := map[string]any{"name": name, "prompt": "write " + name}
		for k, v := range more {
			input[k] = v
		}
		return served{Name: "task_create", Input: input, Until: "was made"}
	}
	phase := func(name string) served {
		return served{Name: "phase_set", Input: map[string]any{"phase": name}, Until: "is in phase " + name}
	}
	wait := func(until string, tasks ...string) served {
		return served{Name: "task_wait", Input: map[string]any{"tasks": tasks}, Until: until}
	}
	wrong := create("wrong", nil)
	wrong.Input["prompt"] = "write nonsense"
	calls := []served{
		phase(clewv1.PhaseSpecify), phase(clewv1.PhasePlan),
		create("parser", nil), create("lexer", nil), wrong,
		create("tests", map[string]any{"depends_on": []string{"parser"}, "start_from": "parser"}),
		create("guide", map[string]any{"depends_on": []string{"lexer"}}),
		create("review", map[string]any{"depends_on": []string{"tests", "guide"}}),
		phase(clewv1.PhaseExecute),
		wait(all, "parser", "lexer", "tests", "guide", "wrong", "review"),
		{Name: "task_history", Input: map[string]any{"task": "wrong", "limit": 5}, Until: "I have written nonsense"},
		{Name: "task_rewind", Input: map[string]any{"task": "wrong", "checkpoint": 1, "prompt": "write docs"}},
		wait(one, "wrong"),
		{Name: "task_diff", Input: map[string]any{"task": "wrong", "path": "docs.txt"}, Until: `\+docs`},
		{Name: "task_fork", Input: map[string]any{"task": "parser", "name": "ways", "variants": []map[string]any{
			{"name": "fast", "prompt": "write fast"}, {"name": "small", "prompt": "write small"}, {"name": "other", "prompt": "write other"},
		}}, Until: "go on: fast, small, other"},
		wait(all, "fast", "small", "other"),
		phase(clewv1.PhaseReview),
		{Name: "task_diff", Input: map[string]any{"task": "fast"}, Until: `\+fast`},
		{Name: "publish", Input: map[string]any{"task": "fast", "call_id": "publish"}},
	}
	s := script{Steps: len(calls), Tools: map[int]served{}}
	for i, call := range calls {
		s.Tools[i+1] = call
	}
	return s
}

var _ = Describe("a supervisor of each kind", Label("agents", "slow", "soak"), func() {
	w := newWorld()

	DescribeTable("leads its workers through the phases of a contract, by tools", func(ctx SpecContext, a realAgent) {
		p := w.newPushed(ctx)
		m := w.newModel(ctx, "lead", leadsByTools())
		w.create(ctx, leading(w.agentTask(ctx, "lead", a, m), p))
		w.untilWorkDone(ctx, p, 12*time.Minute)
		log := m.log(ctx)
		AddReportEntry("requests to the model", fmt.Sprintf("%s: %d", a.name, len(log)))
		Expect(log[len(log)-1].Answer).To(Equal("DONE"))
		Expect(w.callsOf(ctx, "lead")).To(And(
			HaveKeyWithValue("phase_set", 4), HaveKeyWithValue("task_create", 6), HaveKeyWithValue("task_rewind", 1), HaveKeyWithValue("task_fork", 1), HaveKeyWithValue("publish", 1),
		), "each call is one entry")
	}, Entry("Claude Code", SpecTimeout(15*time.Minute), claude()), Entry("Codex", SpecTimeout(15*time.Minute), codex()),
		Entry("Gemini CLI", SpecTimeout(15*time.Minute), gemini()), Entry("OpenCode", SpecTimeout(15*time.Minute), openCode()))
})
