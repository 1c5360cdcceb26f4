package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/jackc/pgx/v5"
)

// much is the amount of data that fillMuch writes.
type much struct {
	// namespaces of that many tasks, each of which has gone back four times: five
	// branches, of 160 and four times 10 messages.
	namespaces, tasks int
	// listed are additional tasks of the first namespace that appear only in lists.
	listed int
	// events of tasks of the first namespace, and checkpoints of its first task.
	events, checkpoints int
}

const messagesPerTask = 200

// word returns a pseudo-random one of n words.
func word(prefix string, salt, n int) string {
	return fmt.Sprintf("'%s' || (hashint4(m + %d) & %d)", prefix, salt, n-1)
}

// fillMuch fills the tables by SQL. Messages consist of words x0…x7, y0…y15, z0…z1023 and
// others. Namespaces are named ns0, ns1 …, tasks n0, n1 … and task-0, task-1 …; task n is
// in namespace n modulo their number.
func fillMuch(t testing.TB, conn *pgx.Conn, size much) {
	t.Helper()
	g := NewWithT(t)
	tasks := size.namespaces * size.tasks
	messages := tasks * messagesPerTask
	body := strings.Join([]string{word("x", 1, 8), word("y", 2, 16), word("z", 3, 1024), word("u", 4, 65536), word("v", 5, 65536), word("t", 6, 256)}, " || ' ' || ")
	statements := []string{
		`SET session_replication_role = replica`, `SET maintenance_work_mem = '256MB'`, `SET synchronous_commit = off`,
		fmt.Sprintf(`INSERT INTO branches (task_uid, number, parent_id, base_position, base_tool_calls, base_input_tokens, base_output_tokens,
				base_cost_micro_usd, head_position, head_tool_calls, head_input_tokens, head_output_tokens, head_cost_micro_usd, head_boundary, head_settled)
			SELECT 'task-' || t, b, CASE WHEN b > 1 THEN t * 5 + b - 1 END, CASE WHEN b > 1 THEN 150 + (b - 1) * 10 ELSE 0 END, 0, 0, 0, 0,
				150 + b * 10, 0, 0, 0, 0, 150 + b * 10, 0
			FROM generate_series(0, %d - 1) t, generate_series(1, 5) b ORDER BY t, b`, tasks),
		fmt.Sprintf(`INSERT INTO tasks (uid, namespace, name, attempt, active_branch, created_at)
			SELECT 'task-' || t, 'ns' || t %% %d, 'n' || t, 1, t * 5 + 5, '2026-01-01'::timestamptz + t * interval '1 second'
			FROM generate_series(0, %d - 1) t`, size.namespaces, tasks),
		`INSERT INTO verifications (task_id, namespace, due, begun, changed) SELECT id, namespace, created_at, created_at, created_at FROM tasks`,
		fmt.Sprintf(`INSERT INTO messages (id, has_call, has_result, is_error, interrupted, hash, namespace, role, tool_name, body, raw, tool_input, tool_output)
			OVERRIDING SYSTEM VALUE
			SELECT m, false, false, false, false, sha256(int4send(m)), 'ns' || m / %d %% %d, 'assistant', '', %s, '', '', ''
			FROM generate_series(0, %d - 1) m`, messagesPerTask, size.namespaces, body, messages),
		fmt.Sprintf(`INSERT INTO entries (branch_id, position, message_id, time, sequence, boundary, tool_calls, input_tokens, output_tokens,
				cost_micro_usd, attempt, snapshot, digest, call_id, result_call_id)
			SELECT m / %[1]d * 5 + greatest((m %% %[1]d) / 10 - 14, 1), m %% %[1]d + 1, m, '2026-01-01'::timestamptz + m * interval '1 second', m, m %% %[1]d + 1,
				0, 0, 0, 0, 1, 0, sha256(int4send(m)), '', ''
			FROM generate_series(0, %[2]d - 1) m`, messagesPerTask, messages),
		`INSERT INTO search_documents (message_id, words)
			SELECT id, to_tsvector('simple', body) || array_to_tsvector(ARRAY[chr(1) || namespace]) FROM messages`,
		fmt.Sprintf(`INSERT INTO task_summaries (uid, namespace, name, state, state_time, preview, created_at, updated_at, messages, input_tokens, tokens, cost_micro_usd, tools)
			SELECT 'listed-' || t, 'ns0', 'listed-' || t, (ARRAY['Running', 'Completed', 'Completed', 'Completed', 'Suspended', 'Failed'])[1 + (hashint4(t) & 255) %% 6], now(),
				'What it is about', '2026-01-01'::timestamptz + t * interval '1 minute', '2026-02-01'::timestamptz + (hashint4(t) & 65535) * interval '1 minute',
				hashint4(t + 1) & 1023, hashint4(t + 2) & 1048575, hashint4(t + 2) & 1048575, hashint4(t + 3) & 1048575,
				CASE WHEN t %% 1000 = 0 THEN ARRAY['ns0/Bash', 'ns0/Rare'] ELSE ARRAY['ns0/Bash', 'ns0/Edit'] END
			FROM generate_series(1, %d) t`, size.listed),
		`INSERT INTO task_summaries (uid, namespace, name, created_at, updated_at) SELECT uid, namespace, name, created_at, updated_at FROM tasks`,
		fmt.Sprintf(`INSERT INTO events SELECT md5(i::text), 'ns0', 'task-' || i %% 20 * %d, 'n' || i %% 20 * %d,
			'2026-01-01'::timestamptz + i * interval '1 second', 'task', 'R', '', 'm', 1, 0 FROM generate_series(1, %d) i`, size.namespaces, size.namespaces, size.events),
		fmt.Sprintf(`INSERT INTO events SELECT md5('other' || i), 'other', 'task-x', 'x',
			'2026-01-01'::timestamptz + i * interval '1 second', 'task', 'R', '', 'm', 1, 0 FROM generate_series(1, %d / 5) i`, size.events),
		`INSERT INTO checkpoint_contexts (task_id, base, git_head, git_branch, session) VALUES (1, '', '', '', '')`,
		fmt.Sprintf(`INSERT INTO checkpoints (time, branch_id, position, task_id, number, attempt, context_id, durable, namespace, trigger, commit, tree, state_commit)
			SELECT '2026-01-01'::timestamptz + i * interval '9 seconds', 1 + i %% 5, 1, t, i, 1, 1, true, 'ns' || (t - 1), 'ToolCalls', '', '', ''
			FROM generate_series(1, %d) t, generate_series(1, %d) i`, min(size.namespaces, 20), size.checkpoints),
		`UPDATE tasks SET latest_checkpoint = (SELECT count(*) FROM checkpoints c WHERE c.task_id = tasks.id)`,
		// Call n is of task n modulo 100, and one in a hundred is not answered: those of task 100.
		`INSERT INTO tool_calls (attempt, task_id, id, tool, call_key, digest, arguments, answered, delivered)
			SELECT 1, 1 + (n - 1) % 100, 'call-' || n, 'task_create', 'key-' || n, 'digest-' || n, '',
				CASE WHEN n % 100 > 0 THEN now() END, CASE WHEN n % 100 > 0 AND n > 200 THEN now() END
			FROM generate_series(1, 40000) n`,
		// Each message has a call that made a task.
		fmt.Sprintf(`INSERT INTO call_effects (branch_id, position, checkpoint, tool, task_uid, task_name, phase)
			SELECT t * 5 + greatest((p - 1) / 10 - 14, 1), p, 0, 'task_create', 'child-' || t || '-' || p, 'child', ''
			FROM generate_series(0, %d - 1) t, generate_series(1, %d) p`, min(tasks, 100), messagesPerTask),
		`SET session_replication_role = DEFAULT`,
	}
	tables := []string{"branches", "tasks", "messages", "entries", "search_documents", "task_summaries", "events", "checkpoints", "verifications", "tool_calls", "call_effects"}
	restore := dropIndexes(t, conn, tables)
	for _, statement := range append(append(statements, restore...), "VACUUM ANALYZE "+strings.Join(tables, ", ")) {
		_, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeExec)
		g.Expect(err).NotTo(HaveOccurred(), statement)
	}
}

// dropIndexes drops what slows down the filling, and returns the statements that restore
// it.
func dropIndexes(t testing.TB, conn *pgx.Conn, tables []string) []string {
	t.Helper()
	g := NewWithT(t)
	rows, err := conn.Query(t.Context(), `SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid)
		FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
		WHERE c.relname = ANY ($1) AND c.relkind = 'r' AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid)`, tables)
	g.Expect(err).NotTo(HaveOccurred())
	var drop, restore []string
	for rows.Next() {
		var name, definition string
		g.Expect(rows.Scan(&name, &definition)).To(Succeed())
		drop, restore = append(drop, "DROP INDEX "+name), append(restore, definition)
	}
	g.Expect(rows.Err()).NotTo(HaveOccurred())
	for _, statement := range drop {
		_, err := conn.Exec(t.Context(), statement)
		g.Expect(err).NotTo(HaveOccurred(), statement)
	}
	return restore
}
