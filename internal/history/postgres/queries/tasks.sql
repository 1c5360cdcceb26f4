-- name: InsertTask :execrows
INSERT INTO tasks (uid, namespace, name, attempt, active_branch)
VALUES (@uid, @namespace, @name, @attempt, 0)
ON CONFLICT (uid) DO NOTHING;

-- name: SetActiveBranch :exec
UPDATE tasks SET active_branch = @branch, updated_at = now() WHERE uid = @uid;

-- name: LockTask :one
-- Keeps others from writing to the task until the transaction ends. Its branch must be
-- read by a separate statement after this one: joined here, it would be read as it was
-- before the wait for the lock.
SELECT * FROM tasks WHERE uid = @uid FOR NO KEY UPDATE;

-- name: HoldTask :one
-- Keeps the task until the transaction ends; others may still write to it.
SELECT namespace FROM tasks WHERE uid = @uid FOR KEY SHARE;

-- name: LockTaskToDelete :one
-- Keeps others from writing to the task and from forking it.
SELECT * FROM tasks WHERE uid = @uid FOR UPDATE;

-- name: Deleted :one
SELECT EXISTS (SELECT FROM deleted_tasks WHERE uid = @uid AND namespace IN (@namespace, ''));

-- name: Task :one
SELECT sqlc.embed(t), sqlc.embed(b), coalesce((SELECT r.active_seconds FROM recorded_transitions r WHERE r.task_uid = t.uid), 0)::bigint AS active_seconds
FROM tasks t JOIN branches b ON b.id = t.active_branch
WHERE t.uid = @uid;

-- name: TaskAttempt :one
SELECT attempt FROM tasks WHERE uid = @uid;

-- name: NewestTaskNamed :one
SELECT uid FROM tasks
WHERE namespace = @namespace AND name = @name
ORDER BY created_at DESC, uid DESC
LIMIT 1;

-- name: TasksNamed :many
-- The tasks of a name that have begun, newest first; imports choose created_at.
SELECT uid, created_at FROM tasks
WHERE namespace = @namespace AND name = @name
ORDER BY id DESC
LIMIT @up_to_rows;

-- name: GoneTask :one
-- The newest task of a name that has a history or a transition, and the state that it has left. Whoever
-- imported a history chose what it says.
SELECT s.uid, s.last_state FROM (
    SELECT n.uid, n.namespace, n.last_state, n.created_at FROM task_summaries n
    WHERE n.namespace = @namespace AND n.name = @name
    ORDER BY n.created_at DESC, n.uid DESC LIMIT 100) s
WHERE NOT EXISTS (SELECT FROM events e WHERE e.task_uid = s.uid AND e.namespace = s.namespace
        AND (e.imported_by <> '' OR e.reason = 'HistoryImported'))
ORDER BY s.created_at DESC, s.uid DESC
LIMIT 1;

-- name: SetTaskHead :exec
UPDATE tasks
SET attempt = greatest(attempt, @attempt), last_sequence = @last_sequence,
    checkpoint_count = @checkpoint_count, requested_checkpoints = @requested_checkpoints, latest_checkpoint = @latest_checkpoint,
    snapshot_every = @snapshot_every, snapshot_count = @snapshot_count, updated_at = now(), stale = true,
    tools = @tools, models = @models, stored_bytes = @stored_bytes, agent_end = @agent_end, active_at = @active_at, worked_at = @worked_at, requests = @requests, holds = @holds,
    last_record_id = @last_record_id, lost_records = @lost_records,
    spent_input_tokens = @spent_input_tokens, spent_output_tokens = @spent_output_tokens,
    spent_cost_micro_usd = @spent_cost_micro_usd, spent_tool_calls = @spent_tool_calls, spent_through = @spent_through,
    contract_cost_micro_usd = @contract_cost_micro_usd, spent_month = @spent_month, month_cost_micro_usd = @month_cost_micro_usd,
    stored_attempt = @stored_attempt, agent_attempt = @agent_attempt, agent_since = @agent_since
WHERE uid = @uid;

-- name: SetTaskLimit :exec
UPDATE tasks
SET limit_since = sqlc.narg('since'), limit_noted = sqlc.narg('noted'), limit_message = @message,
    left_out_records = @left_out_records, left_out_bytes = @left_out_bytes
WHERE uid = @uid;

-- name: NamespaceBytes :one
-- How much the histories of a namespace take, and how much those of others that have had its name.
SELECT coalesce(sum(k.bytes) FILTER (WHERE k.key = @namespace::text), 0)::bigint AS own,
    coalesce(sum(k.bytes) FILTER (WHERE k.key <> @namespace::text), 0)::bigint AS others
FROM (
    SELECT n.key, (SELECT coalesce(sum(t.stored_bytes), 0) FROM tasks t WHERE t.namespace = n.key)
        + (SELECT coalesce(sum(s.bytes), 0) FROM task_specs s WHERE s.namespace = n.key)
        + (SELECT coalesce(sum(u.event_bytes + u.call_bytes), 0) FROM task_usage u WHERE u.namespace = n.key) AS bytes
    FROM (SELECT @namespace::text AS key UNION SELECT o.key FROM namespaces o WHERE o.name = split_part(@namespace::text, '@', 1)) n
) k;

-- name: KeySizes :many
-- How much the histories take, by the keys of their namespaces.
SELECT k.key::text AS key, sum(k.bytes)::bigint AS bytes
FROM (SELECT t.namespace AS key, t.stored_bytes AS bytes FROM tasks t
    UNION ALL SELECT s.namespace, s.bytes FROM task_specs s
    UNION ALL SELECT u.namespace, u.event_bytes + u.call_bytes FROM task_usage u) k
GROUP BY k.key;

-- name: ReportProblem :execrows
-- Not if it was changed a moment ago. A clock that was put back does not keep it from being changed.
UPDATE tasks SET problem_reason = @reason, problem_message = @message, problem_at = now()
WHERE uid = @uid AND (problem_at IS NULL OR problem_at <= now() - make_interval(secs => @seconds::float) OR problem_at > now());

-- name: SetProblem :exec
UPDATE tasks SET problem_reason = @reason, problem_message = @message WHERE uid = @uid;

-- name: Notify :exec
SELECT pg_notify('clew_history', @payload::text);

-- name: ListTask :exec
-- Adds the task to lists; RefreshSummaries fills in its sums.
INSERT INTO task_summaries (uid, namespace, name, preview, created_at, updated_at)
VALUES (@uid, @namespace, @name, @preview, now(), now())
ON CONFLICT (uid) DO UPDATE SET preview = excluded.preview
WHERE task_summaries.preview = '' AND excluded.preview <> '';

-- name: RefreshSummaries :execrows
-- Tasks that are currently being written to are left for the next time.
WITH fresh AS (
    UPDATE tasks SET stale = false
    WHERE tasks.id IN (
        SELECT t.id FROM tasks t
        WHERE t.stale AND (t.namespace = @namespace OR @namespace = '')
        LIMIT @up_to_rows FOR UPDATE SKIP LOCKED)
    RETURNING tasks.uid, tasks.namespace, tasks.tools, tasks.active_branch, tasks.checkpoint_count, tasks.updated_at
)
UPDATE task_summaries s SET
    updated_at = greatest(s.updated_at, fresh.updated_at), checkpoints = fresh.checkpoint_count,
    messages = b.head_position, tool_calls = b.head_tool_calls,
    input_tokens = b.head_input_tokens, output_tokens = b.head_output_tokens,
    tokens = b.head_input_tokens + b.head_output_tokens, cost_micro_usd = b.head_cost_micro_usd,
    tools = ARRAY (SELECT fresh.namespace || '/' || tool FROM unnest(fresh.tools) AS tool)
FROM fresh JOIN branches b ON b.id = fresh.active_branch
WHERE s.uid = fresh.uid;

-- name: SummarizeEvent :exec
-- What lists show about the task, from its transitions, its last state before it was deleted, and its contract.
-- An empty state is no state, and a contract stays.
INSERT INTO task_summaries (uid, namespace, name, contract, state, last_state, state_time, created_at, updated_at)
VALUES (@uid, @namespace, @name, @contract::text, @state::text, CASE WHEN @state::text = 'Deleted' THEN '' ELSE @state::text END,
    CASE WHEN @state::text = '' THEN 'epoch' ELSE @time::timestamptz END, @time::timestamptz, @time::timestamptz)
ON CONFLICT (uid) DO UPDATE SET
    contract = CASE WHEN excluded.contract <> '' THEN excluded.contract ELSE task_summaries.contract END,
    state = CASE WHEN excluded.state <> '' AND excluded.state_time >= task_summaries.state_time THEN excluded.state ELSE task_summaries.state END,
    last_state = CASE WHEN excluded.last_state <> '' AND excluded.state_time >= task_summaries.state_time THEN excluded.last_state ELSE task_summaries.last_state END,
    state_time = greatest(task_summaries.state_time, excluded.state_time),
    created_at = least(task_summaries.created_at, excluded.created_at),
    updated_at = greatest(task_summaries.updated_at, excluded.updated_at);

-- name: JoinContract :execrows
-- Notes to which contract a listed task belongs, unless that is known.
UPDATE task_summaries SET contract = @contract
WHERE task_summaries.uid = @uid AND task_summaries.namespace = @namespace AND task_summaries.contract <> @contract;

-- name: LeaveContract :exec
-- Notes that a listed task belongs to no contract.
UPDATE task_summaries SET contract = '' WHERE task_summaries.uid = @uid AND task_summaries.namespace = @namespace AND task_summaries.contract <> '';

-- name: JoinContracts :execrows
-- Notes to which contracts listed tasks belong of which only the kept specs say so.
UPDATE task_summaries SET contract = s.contract FROM task_specs s
WHERE s.uid = task_summaries.uid AND s.namespace = task_summaries.namespace AND s.contract <> '' AND task_summaries.contract = '';

-- name: ContractOf :one
SELECT contract FROM task_summaries WHERE uid = @uid AND namespace = @namespace;
