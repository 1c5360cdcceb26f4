-- name: InsertTask :execrows
INSERT INTO tasks (uid, namespace, name, attempt, active_branch)
VALUES (@uid, @namespace, @name, @attempt, 0)
ON CONFLICT (uid) DO NOTHING;

-- name: SetActiveBranch :exec
UPDATE tasks SET active_branch = @branch, updated_at = now() WHERE uid = @uid;

-- name: LockTask :one
-- Nobody else writes to the task until the transaction ends. Its branch must be
-- read by a statement of its own, after this one: joined here, it would be as
-- it was before the wait for the lock.
SELECT * FROM tasks WHERE uid = @uid FOR UPDATE;

-- name: Deleted :one
SELECT EXISTS (SELECT FROM deleted_tasks WHERE uid = @uid);

-- name: DeletedAmong :many
SELECT uid FROM deleted_tasks WHERE uid = ANY (@uids::text[]);

-- name: Task :one
SELECT sqlc.embed(t), sqlc.embed(b)
FROM tasks t JOIN branches b ON b.id = t.active_branch
WHERE t.uid = @uid;

-- name: TaskAttempt :one
SELECT attempt FROM tasks WHERE uid = @uid;

-- name: NewestTaskNamed :one
SELECT uid FROM tasks
WHERE namespace = @namespace AND name = @name
ORDER BY created_at DESC, uid DESC
LIMIT 1;

-- name: SetTaskHead :exec
UPDATE tasks
SET attempt = greatest(attempt, @attempt), last_sequence = @last_sequence,
    checkpoint_count = @checkpoint_count, latest_checkpoint = @latest_checkpoint,
    snapshot_every = @snapshot_every, snapshot_count = @snapshot_count, updated_at = now()
WHERE uid = @uid;

-- name: Notify :exec
SELECT pg_notify('clew_history', @payload::text);

-- name: SummarizeTask :exec
-- What lists show of the task, from its row and its active branch.
INSERT INTO task_summaries (
    uid, namespace, name, preview, created_at, updated_at, messages, tool_calls,
    input_tokens, output_tokens, tokens, cost_micro_usd, checkpoints
) VALUES (
    @uid, @namespace, @name, @preview, now(), now(), @messages, @tool_calls,
    @input_tokens, @output_tokens, @tokens, @cost_micro_usd, @checkpoints
)
ON CONFLICT (uid) DO UPDATE SET
    preview = CASE WHEN task_summaries.preview = '' THEN excluded.preview ELSE task_summaries.preview END,
    updated_at = greatest(task_summaries.updated_at, excluded.updated_at),
    messages = excluded.messages, tool_calls = excluded.tool_calls,
    input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens, tokens = excluded.tokens,
    cost_micro_usd = excluded.cost_micro_usd, checkpoints = excluded.checkpoints;

-- name: SummarizeEvent :exec
-- What lists show of the task, from its transitions. An empty state is none.
INSERT INTO task_summaries (uid, namespace, name, state, state_time, created_at, updated_at)
VALUES (@uid, @namespace, @name, @state::text, CASE WHEN @state::text = '' THEN '-infinity' ELSE @time::timestamptz END, @time::timestamptz, @time::timestamptz)
ON CONFLICT (uid) DO UPDATE SET
    state = CASE WHEN excluded.state <> '' AND excluded.state_time >= task_summaries.state_time THEN excluded.state ELSE task_summaries.state END,
    state_time = greatest(task_summaries.state_time, excluded.state_time),
    created_at = least(task_summaries.created_at, excluded.created_at),
    updated_at = greatest(task_summaries.updated_at, excluded.updated_at);

-- name: InsertTools :exec
INSERT INTO task_tools (uid, namespace, tool) SELECT @uid::text, @namespace::text, unnest(@tools::text[])
ON CONFLICT DO NOTHING;

-- name: SpendOnModel :exec
INSERT INTO task_models (uid, model, input_tokens, cached_input_tokens, output_tokens, cost_micro_usd)
VALUES (@uid, @model, @input_tokens, @cached_input_tokens, @output_tokens, @cost_micro_usd)
ON CONFLICT (uid, model) DO UPDATE SET
    input_tokens = task_models.input_tokens + excluded.input_tokens,
    cached_input_tokens = task_models.cached_input_tokens + excluded.cached_input_tokens,
    output_tokens = task_models.output_tokens + excluded.output_tokens,
    cost_micro_usd = task_models.cost_micro_usd + excluded.cost_micro_usd;
