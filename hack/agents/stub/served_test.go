package main

import (
	"slices"
	"testing"
)

// waits is a script whose second step waits until what it waits for has stopped.
func waits() Script {
	return Script{Steps: 3, Tools: map[int]ServedTool{
		1: {Name: "task_create", Input: map[string]any{"name": "a", "depends_on": list("b")}},
		2: {Name: "task_wait", Input: map[string]any{"tasks": list("a")}, Until: `^All 1 have|^It has`},
		3: {Name: "phase_set", Input: map[string]any{"phase": "Plan"}},
	}}
}

func TestAServedToolIsCalledUntilItsResultMatches(t *testing.T) {
	r := request{
		tools: list(tool{name: "mcp__clew__task_create"}, tool{name: "mcp__clew__task_wait"}, tool{name: "mcp__clew__phase_set"}),
		calls: list(call{"1", `{"depends_on":["b"], "name":"a"}`}),
	}
	s := waits()
	for _, c := range []struct {
		call, result string
		next         string
		done         []int
	}{
		{"", "The task a was made.", "step 2: mcp__clew__task_wait", []int{1}},
		{`{"tasks":["a"]}`, "1 task has not stopped yet", "step 2: mcp__clew__task_wait", []int{1}},
		{`{"tasks":["a"]}`, "It has stopped:\na", "step 3: mcp__clew__phase_set", []int{1, 2}},
		{`{"phase":"Plan"}`, "", "DONE", []int{1, 2, 3}},
	} {
		if id := string(rune('0' + len(r.results) + 1)); c.call != "" {
			r.calls = append(r.calls, call{id, c.call})
		}
		r.results = append(r.results, result{r.calls[len(r.calls)-1].id, c.result})
		if got := s.decide(r).summary(); got != c.next {
			t.Errorf("after %q the answer is %q, want %q", c.result, got, c.next)
		}
		if got := s.steps(r); !slices.Equal(got, c.done) {
			t.Errorf("after %q the steps %v are done, want %v", c.result, got, c.done)
		}
	}
}
