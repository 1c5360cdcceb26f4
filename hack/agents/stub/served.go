package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
)

// ServedTool is a call of a tool that is not the agent's own.
type ServedTool struct {
	// Name is the tool's name at its server. Agents put the server's name before it.
	Name string `json:"name"`
	// Input is the call's input, by which the step is recognized: no other step may have it, unless it
	// contains "step N".
	Input map[string]any `json:"input"`
	// Until is a regular expression. The step is done when a result of the call matches it, and the call
	// is made again until then; when it is empty, with any result.
	Until string `json:"until,omitempty"`
}

// call returns the call of the tool, or that of the tool by which it is found.
func (t ServedTool) call(step int, tools []tool) answer {
	found, ok := findServed(tools, t.Name)
	if search, deferred := findSearch(tools); !ok && deferred {
		return answer{step: step, tool: search, input: map[string]any{"query": t.Name}}
	}
	if !ok {
		return answer{text: fmt.Sprintf("I was offered no tool %s, only %v.", t.Name, tools)}
	}
	return answer{step: step, tool: found, input: t.Input}
}

// satisfied reports whether the step is done with a result.
func (t ServedTool) satisfied(result string) bool {
	if t.Until == "" {
		return true
	}
	matched, err := regexp.MatchString(t.Until, result)
	return err == nil && matched
}

// served returns the step of which a call is one of the tools.
func (s Script) served(input string) (step int, ok bool) {
	var is any
	if json.Unmarshal([]byte(input), &is) != nil {
		return 0, false
	}
	for step, t := range s.Tools {
		var want any
		if json.Unmarshal([]byte(encode(t.Input)), &want) == nil && reflect.DeepEqual(is, want) {
			return step, true
		}
	}
	return 0, false
}

// findServed returns the tool of a server with that name.
func findServed(tools []tool, name string) (tool, bool) {
	for _, t := range tools {
		if strings.HasSuffix(t.name, "_"+name) || t.namespace != "" && t.name == name {
			return t, true
		}
	}
	return tool{}, false
}
