package gateway_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	. "github.com/onsi/ginkgo/v2"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/gateway"
	"github.com/clew-dev/clew/internal/testing/exchanges"
)

// reported returns a handler whose latest requests and responses are in the report of a
// spec that fails.
func reported(handler http.Handler) http.Handler {
	log := &exchanges.Log{}
	DeferOnFailure(func() {
		AddReportEntry("requests to the gateway", log.String(), ReportEntryVisibilityFailureOrVerbose)
	})
	return log.Handler(handler)
}

// reportHistory reports what the history holds of the spec's tasks.
func reportHistory(ctx SpecContext, store gateway.Store) {
	for _, uid := range []string{identity("a", 1).TaskUID, identity("b", 1).TaskUID} {
		held, err := describeHistory(ctx, store, uid)
		switch {
		case errors.Is(err, history.ErrNotFound):
			held = "no task of this UID has begun"
		case err != nil:
			held += err.Error()
		}
		AddReportEntry("the history of "+uid, held, ReportEntryVisibilityFailureOrVerbose)
	}
}

// describeHistory lists the state of a task, and the first messages of its conversation.
func describeHistory(ctx SpecContext, store gateway.Store, uid string) (string, error) {
	state, err := store.TaskState(ctx, uid)
	if err != nil {
		return "", err
	}
	text := &strings.Builder{}
	fmt.Fprintf(text, "attempt %d, records up to %d (%d lost, %d left out), at %s/%d, checkpoints %d, open calls %q, completed operations %q\n",
		state.Attempt, state.LastSequence, state.LostRecords, state.LeftOutRecords, state.Position.Branch, state.Position.Position,
		state.CheckpointCount, state.OpenToolCalls, state.CompletedOperations)
	entries, err := store.Conversation(ctx, uid, 0, 20)
	for _, e := range entries {
		fmt.Fprintf(text, "%d %s %s: %q", e.Position, e.Branch, e.Message.Role, clip.Marked(e.Message.Text, 80))
		if call := e.Message.ToolCall; call != nil {
			fmt.Fprintf(text, " calls %s (%s)", call.Name, call.ID)
		}
		if result := e.Message.ToolResult; result != nil {
			fmt.Fprintf(text, " result of %s: %q", result.CallID, clip.Marked(result.Output, 80))
		}
		text.WriteString("\n")
	}
	return text.String(), err
}
