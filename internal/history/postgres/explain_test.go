package postgres_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

// planned is a query whose plan is checked.
type planned struct {
	name string
	text string
	args pgx.NamedArgs
	// index that must be used, rows that must be returned, blocks that may be read.
	index        string
	rows, blocks int
}

// plans returns the queries that run over large tables.
func plans(t testing.TB) []planned {
	t.Helper()
	stored := func(name string, args pgx.NamedArgs, index string, rows, blocks int) planned {
		return planned{name, queryText(t, name), args, index, rows, blocks}
	}
	found := func(name string, query history.SearchQuery, index string, rows, blocks int) planned {
		query.Namespace, query.Limit = "ns3", 20
		text, args := postgres.SearchStatement(query)
		return planned{name, text, args, index, rows, blocks}
	}
	listed := func(name string, query history.TaskQuery, index string, blocks int) planned {
		query.Namespace, query.Limit = "ns0", 50
		text, args, err := postgres.TasksStatement(query)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return planned{name, text, args, index, 51, blocks}
	}
	return []planned{
		stored("NamespaceTimeline", timelineArgs(pgx.NamedArgs{"namespace": "ns0"}), `events_\w+_namespace_time_id_idx(.|\n)*checkpoints_by_namespace`, 50, 800),
		stored("TaskTimeline", timelineArgs(pgx.NamedArgs{"namespace": "ns0", "task_uid": "task-0"}), `events_\w+_task_uid_time_id_idx(.|\n)*checkpoints_pkey`, 50, 800),
		stored("NewestEventTaskNamed", pgx.NamedArgs{"namespace": "ns0", "name": "n0"}, `events_\w+_namespace_task_name_time_idx`, 1, 20),
		stored("Conversation", pgx.NamedArgs{"branch_id": 35, "upto": 200, "after": 150, "up_to_rows": 50, "up_to_bytes": 1 << 24}, "entries_pkey", 50, 500),
		stored("BranchHolding", pgx.NamedArgs{"branch_id": 35, "position": 60}, "branches_pkey", 1, 60),
		stored("CheckpointBefore", pgx.NamedArgs{"task_uid": "task-0", "branch_id": 5, "upto": 150, "taken_by": "9999-01-01"}, "checkpoints_pkey", 1, 500),
		stored("CheckpointBefore", pgx.NamedArgs{"task_uid": "task-0", "branch_id": 5, "upto": 150, "taken_by": "2026-01-01 00:40:00Z"}, "checkpoints_pkey", 1, 500),
		stored("FirstCheckpointAfter", pgx.NamedArgs{"task_uid": "task-0", "after": "2026-01-01 00:40:00Z"}, "checkpoints_pkey", 1, 500),
		stored("CheckpointElsewhere", pgx.NamedArgs{"task_uid": "task-0", "branch_id": 3, "after": 100, "taken_by": "2026-01-01 00:40:00Z"}, "checkpoints_pkey", 1, 100),
		stored("CheckpointElsewhere", pgx.NamedArgs{"task_uid": "task-0", "branch_id": 5, "after": 0, "taken_by": "2026-01-01 00:40:00Z"}, "checkpoints_pkey", 0, 500),
		stored("CheckpointsBefore", pgx.NamedArgs{"task_uid": "task-0", "before": 200, "up_to_rows": 50}, "checkpoints_pkey", 50, 1500),
		stored("ClaimVerification", pgx.NamedArgs{"after": "ns3", "resting": []string{"ns4"}, "until": time.Now().Add(time.Hour)}, "verifications_by_turn", 1, 60),
		stored("PendingToolCalls", pgx.NamedArgs{"after": 30_000, "up_to_rows": 20}, "tool_calls_pending", 20, 150),
		stored("UndeliveredToolCall", pgx.NamedArgs{"task_id": 3, "digest": "digest-3"}, "tool_calls_undelivered", 1, 20),
		stored("ToolCallByKey", pgx.NamedArgs{"task_id": 3, "call_key": "key-203"}, "tool_calls_by_key", 1, 20),
		stored("UnansweredToolCalls", pgx.NamedArgs{"task_id": 3}, "tool_calls_unanswered", 1, 20),
		stored("ToolCall", pgx.NamedArgs{"id": "call-203", "task_uid": "task-2"}, "tool_calls_by_id", 1, 20),
		stored("ToolCallsByID", pgx.NamedArgs{"task_id": 3, "ids": []string{"call-203", "call-303"}}, "tool_calls_by_id", 0, 30),
		stored("CallEffects", pgx.NamedArgs{"branch_id": 35, "active_branch": 35, "upto": 200, "after": 150, "namespace": "ns6", "up_to_rows": 5000}, "call_effects_pkey", 50, 400),
		stored("MadeByCall", pgx.NamedArgs{"task_uid": "child-6-60", "namespace": "ns6"}, "call_effects_by_task", 1, 60),
		stored("LatestCheckpoints", pgx.NamedArgs{"namespace": "ns0", "task_uids": []string{"task-0", "task-20"}}, "checkpoints_pkey", 1, 30),
		stored("WaitingMessages", pgx.NamedArgs{"up_to_rows": 100}, "search_queue", 0, 10),
		found("search two words", history.SearchQuery{Text: "x3 y5"}, "search_documents_words", 21, 4000),
		found("search a rare word", history.SearchQuery{Text: "z17"}, "search_documents_words", -1, 2000),
		found("search in a task", history.SearchQuery{Text: "x3 y5", UID: "task-3"}, "search_documents_words|entries_pkey", -1, 4000),
		listed("tasks by creation", history.TaskQuery{}, "task_summaries_by_created", 300),
		listed("tasks by change", history.TaskQuery{Sort: history.SortUpdated}, "task_summaries_by_updated", 300),
		listed("tasks by cost", history.TaskQuery{Sort: history.SortCost}, "task_summaries_by_cost", 300),
		listed("tasks by tokens", history.TaskQuery{Sort: history.SortTokens}, "task_summaries_by_tokens", 300),
		listed("tasks by messages", history.TaskQuery{Sort: history.SortMessages}, "task_summaries_by_messages", 300),
		listed("tasks by name", history.TaskQuery{Sort: history.SortName}, "task_summaries_by_name", 300),
		listed("tasks with a prefix", history.TaskQuery{Sort: history.SortName, NamePrefix: "listed-12"}, "task_summaries_by_name", 300),
		listed("tasks in a state", history.TaskQuery{State: "Running"}, "task_summaries_by_state", 300),
		listed("tasks with a tool", history.TaskQuery{Tool: "Edit"}, "task_summaries_by_created", 400),
		listed("tasks over a cost", history.TaskQuery{MinCostMicroUSD: 1040000, Sort: history.SortCost}, "task_summaries_by_cost", 300),
	}
}

var _ = Describe("The plans of the queries", Label("slow"), func() {
	// The plans are checked with many rows in the tables.
	It("use an index and read little more than they return", func() {
		t := GinkgoTB()
		conn := connect(t, pg.Database(t))
		fillMuch(t, conn, much{namespaces: 20, tasks: 15, listed: 20_000, events: 100_000, checkpoints: 300})
		for _, tt := range plans(t) {
			By(tt.name, func() {
				p := explain(t, conn, tt.text, tt.args)
				Expect(p.text).To(MatchRegexp(tt.index))
				Expect(p.text).NotTo(MatchRegexp(`Seq Scan on (entries|messages|events|search|task_summaries|tool_calls|call_effects)`))
				if tt.rows >= 0 {
					Expect(p.rows).To(Equal(tt.rows), "rows returned")
				}
				Expect(p.blocks).To(BeNumerically("<=", tt.blocks), "blocks read by\n%s", p.text)
			})
		}
	})
})

func timelineArgs(more pgx.NamedArgs) pgx.NamedArgs {
	args := pgx.NamedArgs{
		"before_time": "2026-01-01 00:40:00Z", "before_id": "m", "since": "0001-01-01",
		"types": []string{}, "up_to_rows": 50,
	}
	for key, value := range more {
		args[key] = value
	}
	return args
}

// queryText returns a query by its name.
func queryText(t testing.TB, name string) string {
	t.Helper()
	g := NewWithT(t)
	files, err := filepath.Glob("queries/*.sql")
	g.Expect(err).NotTo(HaveOccurred())
	var all strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		all.Write(content)
	}
	_, after, found := strings.Cut(all.String(), "-- name: "+name+" :")
	g.Expect(found).To(BeTrue(), "there is a query %s", name)
	_, text, _ := strings.Cut(after, "\n")
	text = regexp.MustCompile(`(?m)^--.*$`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`sqlc\.embed\((\w+)\)`).ReplaceAllString(text, "$1.*")
	text, _, _ = strings.Cut(text, ";")
	return text
}

// plan is the output of EXPLAIN (ANALYZE) for a query.
type plan struct {
	text         string
	rows, blocks int
	milliseconds float64
}

func explain(t testing.TB, conn *pgx.Conn, text string, args pgx.NamedArgs) plan {
	t.Helper()
	var plans []struct {
		Plan          map[string]any `json:"Plan"`
		ExecutionTime float64        `json:"Execution Time"`
	}
	row := conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+text, pgx.QueryExecModeCacheDescribe, args)
	NewWithT(t).Expect(row.Scan(&plans)).To(Succeed())
	top := plans[0].Plan
	var lines []string
	describe(top, "", &lines)
	return plan{
		strings.Join(lines, "\n"), int(top["Actual Rows"].(float64)),
		int(top["Shared Hit Blocks"].(float64) + top["Shared Read Blocks"].(float64)), plans[0].ExecutionTime,
	}
}

func describe(node map[string]any, indent string, lines *[]string) {
	line := indent + node["Node Type"].(string)
	for _, key := range []string{"Index Name", "Relation Name"} {
		if value, ok := node[key].(string); ok {
			line += " on " + value
		}
	}
	*lines = append(*lines, fmt.Sprintf("%s (%v rows, %v times, %v ms)", line, node["Actual Rows"], node["Actual Loops"], node["Actual Total Time"]))
	children, _ := node["Plans"].([]any)
	for _, child := range children {
		describe(child.(map[string]any), indent+"  ", lines)
	}
}
