package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// toolCall is a call of one of Clew's tools.
type toolCall struct {
	tool      v1alpha1.AgentTool
	arguments string // JSON
	// secret is what the answer must not hold. If it is empty, the call must be refused.
	secret string
	// may is set for a call that is carried out: it shows that the others could be.
	may bool
}

func (c toolCall) String() string {
	if len(c.arguments) > 100 {
		return fmt.Sprintf("%s %.60s… (%d bytes)", c.tool, c.arguments, len(c.arguments))
	}
	return fmt.Sprintf("%s %s", c.tool, c.arguments)
}

// try calls the tool, again when there were too many calls.
func (c toolCall) try(ctx context.Context) (answer string, err error) {
	for {
		answer, err = c.once(ctx)
		if err == nil || !strings.Contains(err.Error(), "Too many calls") {
			break
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	switch {
	case err != nil:
		return "", err
	case c.may:
		return "", &allowedError{answer}
	case c.secret != "" && !strings.Contains(answer, c.secret):
		return "", errors.New(answer)
	}
	return answer, nil
}

func (c toolCall) once(ctx context.Context) (answer string, err error) {
	err = inSession(ctx, func(session *mcp.ClientSession) error {
		result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: string(c.tool), Arguments: json.RawMessage(c.arguments)})
		if err != nil {
			return err
		}
		for _, part := range result.Content {
			if text, ok := part.(*mcp.TextContent); ok {
				answer += text.Text
			}
		}
		if result.IsError {
			return errors.New(answer)
		}
		return nil
	})
	return answer, err
}

// workersCalls returns calls of a task without a supervisor's tools. In its namespace is a task
// stranger, which has said the word swordfish.
func workersCalls() []toolCall {
	calls := []toolCall{
		{tool: v1alpha1.ToolCheckpoint, arguments: `{"message":"mine"}`, may: true},
		{tool: v1alpha1.ToolCheckpoint, arguments: `{"message":"x","task":"stranger"}`},
		{tool: v1alpha1.ToolCheckpoints, arguments: `{"task":"stranger"}`},
		{tool: v1alpha1.ToolCheckpoints, arguments: `{"namespace":"kube-system"}`},
		{tool: v1alpha1.ToolHistorySearch, arguments: `{"query":"swordfish"}`, secret: "the password is"},
		{tool: v1alpha1.ToolHistorySearch, arguments: `{"query":"x' OR '1'='1"}`, secret: "the password is"},
		{tool: v1alpha1.ToolHistorySearch, arguments: `{"query":"swordfish","task":"stranger"}`},
		{tool: v1alpha1.ToolDiff, arguments: `{"from":999999}`},
		{tool: v1alpha1.ToolDiff, arguments: `{"from":-1}`},
		{tool: v1alpha1.ToolDiff, arguments: `{"path":"../../../etc/passwd"}`, secret: "root:"},
		{tool: v1alpha1.ToolDiff, arguments: `{"path":"/etc/passwd"}`, secret: "root:"},
		{tool: v1alpha1.ToolDiff, arguments: `{"path":":(exclude)x"}`, secret: "root:"},
		{tool: v1alpha1.ToolDiff, arguments: `{"path":"--output=/workspace/x"}`, secret: "root:"},
		{tool: "exec", arguments: `{"command":"id"}`},
	}
	for _, tool := range v1alpha1.SupervisorTools() {
		calls = append(calls, toolCall{tool: tool, arguments: `{"task":"stranger","name":"x","prompt":"p","tasks":["stranger"],"phase":"Plan"}`})
	}
	return calls
}

// supervisorsCalls returns calls of a supervisor that may make one child. Beside it are the
// supervisor rival with the child worker, and the task stranger.
func supervisorsCalls() []toolCall {
	calls := []toolCall{
		{tool: v1alpha1.ToolTaskCreate, arguments: `{"name":"mine","prompt":"p"}`, may: true},
		{tool: v1alpha1.ToolTaskWait, arguments: `{"tasks":["mine"]}`, may: true},
		{tool: v1alpha1.ToolTaskCreate, arguments: `{"name":"mine","prompt":"something else"}`},
		{tool: v1alpha1.ToolTaskCreate, arguments: `{"name":"second","prompt":"p"}`}, // one too many
		{tool: v1alpha1.ToolTaskCreate, arguments: `{"name":"circle","prompt":"p","depends_on":["circle"]}`},
		{tool: v1alpha1.ToolTaskCreate, arguments: `{"name":"circle","prompt":"p","depends_on":["self"]}`},
		{tool: v1alpha1.ToolTaskCreate, arguments: fmt.Sprintf(`{"name":"long","prompt":%q}`, strings.Repeat("x", 200<<10))},
		{tool: v1alpha1.ToolTaskFork, arguments: `{"task":"mine","name":"ways","variants":[{"name":"a"},{"name":"b"}]}`},
		{tool: v1alpha1.ToolTaskRewind, arguments: `{"task":"mine","checkpoint":99}`},
		{tool: v1alpha1.ToolTaskRewind, arguments: `{"task":"mine","checkpoint":-1}`},
		{tool: v1alpha1.ToolTaskStop, arguments: `{"task":"self"}`},
		{tool: v1alpha1.ToolPhaseSet, arguments: `{"phase":"Deploy"}`},
		{tool: v1alpha1.ToolPhaseSet, arguments: `{"phase":"Plan","call_id":"a b/../c"}`},
		{tool: "exec", arguments: `{"command":"id"}`},
	}
	for _, name := range []string{"stranger", "rival", "worker", "nobody", "../stranger", "stranger/status", "%2e%2e", ""} {
		calls = append(calls, callsOfOthers(name)...)
	}
	all := givenByTheSpec()
	for _, tool := range slices.Sorted(maps.Keys(all)) {
		for _, field := range all[tool].fields {
			calls = append(calls, toolCall{tool: tool, arguments: "{" + all[tool].call + "," + field + "}"})
		}
	}
	return calls
}

// callsOfOthers returns every call that can name a task, with one that is no child.
func callsOfOthers(name string) []toolCall {
	task := fmt.Sprintf(`{"task":%q`, name)
	calls := []toolCall{
		{tool: v1alpha1.ToolTaskStop, arguments: task + "}"},
		{tool: v1alpha1.ToolTaskResume, arguments: task + `,"prompt":"p"}`},
		{tool: v1alpha1.ToolTaskRewind, arguments: task + `,"checkpoint":1}`},
		{tool: v1alpha1.ToolTaskFork, arguments: task + `,"name":"ways","variants":[{"name":"x"}]}`},
		{tool: v1alpha1.ToolTaskHistory, arguments: task + "}"},
		{tool: v1alpha1.ToolTaskDiff, arguments: task + "}"},
		{tool: v1alpha1.ToolTaskWait, arguments: fmt.Sprintf(`{"tasks":[%q]}`, name)},
		{tool: v1alpha1.ToolTaskCreate, arguments: fmt.Sprintf(`{"name":"a","prompt":"p","depends_on":[%q]}`, name)},
	}
	if name == "" { // means the agent's own work, and the repository
		return calls
	}
	return append(calls,
		toolCall{tool: v1alpha1.ToolPublish, arguments: task + "}"},
		toolCall{tool: v1alpha1.ToolTaskCreate, arguments: fmt.Sprintf(`{"name":"a","prompt":"p","start_from":%q}`, name)},
	)
}

// given is what only the supervisor's spec decides about a call: fields that are tried in one that
// would be carried out without them.
type given struct {
	call   string
	fields []string
}

// givenByTheSpec returns that for each tool.
func givenByTheSpec() map[v1alpha1.AgentTool]given {
	return map[v1alpha1.AgentTool]given{
		v1alpha1.ToolTaskCreate: {`"name":"mine","prompt":"p"`, []string{
			`"template":{}`, `"image":"evil"`, `"env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"git","key":"password"}}}]`,
			`"agent":{"type":"Exec"}`, `"tools":["publish"]`, `"role":"Supervisor"`, `"children":{"maximum":1000}`, `"contract":{"name":"other"}`,
			`"repository":{"url":"https://evil.example.com"}`, `"publish":{"branch":"main"}`, `"parentRef":{"name":"rival"}`,
			`"serviceAccountName":"admin"`, `"namespace":"kube-system"`, `"adopt":"Latest"`, `"budget":{}`,
		}},
		v1alpha1.ToolTaskFork:   {`"task":"mine","name":"ways","variants":[{"name":"x"}]`, []string{`"template":{}`, `"adopt":"Latest"`}},
		v1alpha1.ToolTaskResume: {`"task":"mine","prompt":"p"`, []string{`"mode":"Clean"`, `"onDrift":"Override"`}},
		v1alpha1.ToolTaskRewind: {`"task":"mine","checkpoint":1`, []string{`"scope":"Code"`, `"to":{"commit":"x"}`}},
		v1alpha1.ToolTaskStop:   {`"task":"mine"`, []string{`"delete":true`}},
		v1alpha1.ToolPhaseSet:   {`"phase":"Plan"`, []string{`"phases":["Mine"]`, `"contract":"other"`}},
		v1alpha1.ToolPublish: {`"task":"mine"`, []string{
			`"branch":"main"`, `"pushOptions":["ci.skip"]`, `"approvedCommit":"x"`, `"protectedPaths":[]`, `"onDiverged":"Force"`,
		}},
	}
}
