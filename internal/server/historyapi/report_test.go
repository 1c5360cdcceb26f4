package historyapi_test

import (
	"fmt"
	"net/http"
	"strings"

	. "github.com/onsi/ginkgo/v2"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/exchanges"
)

// reported returns a handler whose latest requests and responses are in the report of a
// spec that fails.
func reported(handler http.Handler) http.Handler {
	log := &exchanges.Log{}
	DeferOnFailure(func() { report("requests to the history API", log.String()) })
	return log.Handler(handler)
}

func report(what, text string) {
	AddReportEntry(what, text, ReportEntryVisibilityFailureOrVerbose)
}

// reportStore reports what the store holds of the newest task a, and the events of its
// namespace.
func (f *fixture) reportStore(ctx SpecContext) {
	text := &strings.Builder{}
	page, err := f.store.TaskConversation(ctx, history.ConversationQuery{Namespace: "team", Name: "a", Limit: 20})
	if err != nil {
		fmt.Fprintf(text, "conversation of team/a: %v\n", err)
	} else {
		fmt.Fprintf(text, "conversation of team/a, UID %s, branch %s:\n", page.Task.UID, page.Branch)
	}
	for _, e := range page.Entries {
		fmt.Fprintf(text, "  %d %s %s: %q\n", e.Position, e.Branch, e.Message.Role, clip.Marked(e.Message.Text, 80))
	}
	events, err := f.store.Timeline(ctx, history.TimelineQuery{Namespace: "team", Limit: 20})
	if err != nil {
		fmt.Fprintf(text, "events of team: %v\n", err)
	}
	for _, e := range events.Events {
		fmt.Fprintf(text, "%s of task %s %s by %s: %q\n", e.Reason, e.Task.Name, e.Task.UID, e.Actor, clip.Marked(e.Message, 80))
	}
	report("the history in the store", text.String())
}

// reportArchive reports what the stand-in archive and the gitstore hold, and what they were
// asked.
func (f *fixture) reportArchive() {
	text := &strings.Builder{}
	for _, t := range f.archive.tasks {
		fmt.Fprintf(text, "task %s, UID %s, messages %d, checkpoints %d\n", t.Name, t.UID, t.Totals.Messages, t.Checkpoints)
	}
	for _, e := range f.archive.events {
		fmt.Fprintf(text, "%s of task %s %s by %s\n", e.Reason, e.Task.Name, e.Task.UID, e.Actor)
	}
	fmt.Fprintf(text, "Tasks that exist: %v\nimports begun: %d, of lines %d\nhistories deleted: %q, with code %q\n",
		f.tasks, f.archive.imports.Load(), len(f.archive.imported), f.archive.deleted, f.code.asked)
	report("the history in the archive", text.String())
}
