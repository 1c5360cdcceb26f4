package postgres_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// The plans of the queries that run over much are looked at with many rows in
// the tables: they must go by index, and touch little more than they return.
func TestPlans(t *testing.T) {
	conn := connect(t, pg.Database(t))
	fill(t, conn)
	var leaf int64
	if err := conn.QueryRow(t.Context(), "SELECT active_branch FROM tasks WHERE uid = 'task-7'").Scan(&leaf); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		query  string
		args   pgx.NamedArgs
		index  string
		rows   int
		blocks int
	}{
		{"NamespaceTimeline", timelineArgs(nil), `events_\w+_namespace_time_id_idx`, 50, 400},
		{"TaskTimeline", timelineArgs(pgx.NamedArgs{"task_uid": "task-7"}), `events_\w+_task_uid_time_id_idx`, 50, 400},
		{"NewestEventTaskNamed", pgx.NamedArgs{"namespace": "team", "name": "n7"}, `events_\w+_namespace_task_name_time_idx`, 1, 20},
		{"Conversation", pgx.NamedArgs{"branch_id": leaf, "upto": 1500, "after": 1450, "up_to_rows": 50, "up_to_bytes": 1 << 24}, "entries_pkey", 50, 500},
		{"BranchHolding", pgx.NamedArgs{"branch_id": leaf, "position": 700}, "Recursive Union", 1, 60},
	}
	for _, tt := range tests {
		t.Run(tt.query, func(t *testing.T) {
			plan, rows, blocks := explain(t, conn, queryText(t, tt.query), tt.args)
			if !regexp.MustCompile(tt.index).MatchString(plan) || regexp.MustCompile(`Seq Scan on (entries|messages|events)`).MatchString(plan) {
				t.Errorf("does not go by %s:\n%s", tt.index, plan)
			}
			if rows != tt.rows {
				t.Errorf("%d rows, want %d", rows, tt.rows)
			}
			if blocks > tt.blocks {
				t.Errorf("touches %d blocks, more than %d:\n%s", blocks, tt.blocks, plan)
			}
		})
	}
}

func timelineArgs(more pgx.NamedArgs) pgx.NamedArgs {
	args := pgx.NamedArgs{
		"namespace": "team", "before_time": "2026-01-01 12:00:00Z", "before_id": "m", "since": "0001-01-01",
		"types": []string{}, "up_to_rows": 50,
	}
	for key, value := range more {
		args[key] = value
	}
	return args
}

// fill makes 20 tasks of 5 nested branches with 300 messages each, and 100,000 events.
func fill(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	for _, statement := range []string{
		`SET session_replication_role = replica`,
		`INSERT INTO branches (task_uid, number, parent_id, base_position, head_position, head_tool_calls, head_input_tokens,
			head_output_tokens, head_cost_micro_usd, head_boundary, head_settled)
			SELECT 'task-' || t, b, CASE WHEN b > 1 THEN (t - 1) * 5 + b - 1 END, (b - 1) * 300, b * 300, 0, 0, 0, 0, b * 300, 0
			FROM generate_series(1, 20) t, generate_series(1, 5) b ORDER BY t, b`,
		`INSERT INTO tasks (uid, namespace, name, attempt, active_branch)
			SELECT 'task-' || t, 'team', 'n' || t, 1, t * 5 FROM generate_series(1, 20) t`,
		`INSERT INTO messages (id, has_call, has_result, is_error, interrupted, hash, namespace, role, tool_name, body, raw, tool_input, tool_output)
			OVERRIDING SYSTEM VALUE
			SELECT b * 300 + p, false, false, false, false, decode(md5(b || '/' || p), 'hex'), 'team', 'user', '', repeat('x', 100), '', '', ''
			FROM generate_series(1, 100) b, generate_series(1, 300) p`,
		`INSERT INTO entries (branch_id, position, message_id, time, sequence, boundary, tool_calls, input_tokens, output_tokens,
				cost_micro_usd, attempt, snapshot, digest, call_id, result_call_id)
			SELECT b.id, b.base_position + p, b.id * 300 + p, now(), p, p, 0, 0, 0, 0, 1, 0, sha256(''), '', ''
			FROM branches b, generate_series(1, 300) p`,
		`INSERT INTO events SELECT md5(i::text), 'team', 'task-' || i % 20, 'n' || i % 20,
			'2026-01-01'::timestamptz + i * interval '1 second', 'task', 'R', '', 'm', 1, 0 FROM generate_series(1, 100000) i`,
		`INSERT INTO events SELECT md5('other' || i), 'other', 'task-x', 'x',
			'2026-01-01'::timestamptz + i * interval '1 second', 'task', 'R', '', 'm', 1, 0 FROM generate_series(1, 20000) i`,
		`SET session_replication_role = DEFAULT`,
		`ANALYZE`,
	} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%v in %s", err, statement)
		}
	}
}

// queryText reads a query by its name.
func queryText(t *testing.T, name string) string {
	t.Helper()
	files, err := filepath.Glob("queries/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, after, found := strings.Cut(string(content), "-- name: "+name+" :")
		if !found {
			continue
		}
		_, text, _ := strings.Cut(after, "\n")
		text = regexp.MustCompile(`(?m)^--.*$`).ReplaceAllString(text, "")
		text, _, _ = strings.Cut(text, ";")
		return text
	}
	t.Fatalf("there is no query %s", name)
	return ""
}

func explain(t *testing.T, conn *pgx.Conn, text string, args pgx.NamedArgs) (plan string, rows, blocks int) {
	t.Helper()
	var plans []struct {
		Plan map[string]any `json:"Plan"`
	}
	if err := conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+text, args).Scan(&plans); err != nil {
		t.Fatalf("explain: %v", err)
	}
	top := plans[0].Plan
	var lines []string
	describe(top, "", &lines)
	return strings.Join(lines, "\n"), int(top["Actual Rows"].(float64)),
		int(top["Shared Hit Blocks"].(float64) + top["Shared Read Blocks"].(float64))
}

func describe(node map[string]any, indent string, lines *[]string) {
	line := indent + node["Node Type"].(string)
	for _, key := range []string{"Index Name", "Relation Name"} {
		if value, ok := node[key].(string); ok {
			line += " on " + value
		}
	}
	*lines = append(*lines, line)
	children, _ := node["Plans"].([]any)
	for _, child := range children {
		describe(child.(map[string]any), indent+"  ", lines)
	}
}
