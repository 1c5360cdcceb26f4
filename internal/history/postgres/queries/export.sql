-- name: ExportBranches :many
-- The branches of the task, and those of other tasks that they inherit from.
WITH RECURSIVE up AS (
    SELECT b.id, b.parent_id FROM branches b WHERE b.task_uid = @uid::text
    UNION
    SELECT p.id, p.parent_id FROM up JOIN branches p ON p.id = up.parent_id
)
SELECT b.* FROM branches b WHERE b.id IN (SELECT up.id FROM up) ORDER BY b.id;

-- name: ExportEntries :many
SELECT page.* FROM (
    SELECT e.position, e.time, e.attempt, e.sequence, e.boundary, e.tool_calls, e.input_tokens, e.output_tokens, e.cost_micro_usd,
        e.call_id, e.result_call_id, m.role, m.body, m.raw, m.has_call, m.tool_name, m.tool_input,
        m.has_result, m.tool_output, m.is_error, m.interrupted, m.cuts, m.namespace,
        coalesce(sum(octet_length(m.body) + octet_length(m.raw) + octet_length(m.tool_input) + octet_length(m.tool_output))
            OVER (ORDER BY e.position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::bigint AS bytes_before
    FROM (
        SELECT * FROM entries
        WHERE entries.branch_id = @branch_id AND entries.position > @after::bigint AND entries.position <= @upto::bigint
        ORDER BY entries.position
        LIMIT @up_to_rows
    ) e
    JOIN messages m ON m.id = e.message_id
) page
WHERE page.bytes_before < @up_to_bytes::bigint
ORDER BY page.position;

-- name: ExportCheckpoints :many
SELECT sqlc.embed(r), coalesce(c.changes, '')::text AS changes
FROM recorded_checkpoints r JOIN checkpoints c ON c.task_id = r.task_id AND c.number = r.number
WHERE r.task_uid = @uid AND r.number > @after::integer ORDER BY r.number LIMIT @up_to_rows;

-- name: ExportOperations :many
SELECT * FROM operations WHERE task_uid = @uid ORDER BY ordinal;

-- name: ExportEvents :many
-- Imported events are returned as they were exported, so that exporting an import gives
-- the same export.
SELECT told.* FROM (
    SELECT (CASE WHEN imported_by = '' THEN id ELSE imported_id END COLLATE "C")::text AS id, time,
        (CASE WHEN imported_by <> '' AND type = 'imported' THEN 'access' ELSE type END)::text AS type,
        reason, actor, message, attempt, checkpoint, details
    FROM events WHERE task_uid = @uid AND namespace = @namespace AND time >= @after_time::timestamptz
) told
WHERE (told.time, told.id) > (@after_time::timestamptz, @after_id::text)
ORDER BY told.time, told.id LIMIT @up_to_rows;

-- name: Summary :one
SELECT * FROM task_summaries WHERE uid = @uid;

-- name: ImportTask :one
INSERT INTO tasks (
    uid, namespace, name, attempt, last_sequence, active_branch, checkpoint_count, latest_checkpoint, created_at, updated_at,
    snapshot_every, snapshot_count, tools, models, stale
) VALUES (
    @uid, @namespace, @name, @attempt, @last_sequence, 0, @checkpoint_count, @latest_checkpoint, @created_at, @updated_at,
    @snapshot_every, @snapshot_count, @tools, @models, true
)
ON CONFLICT (uid) DO NOTHING
RETURNING id;

-- name: SetStoredBytes :exec
UPDATE tasks SET stored_bytes = @stored_bytes WHERE uid = @uid;

-- name: ImportSummary :execrows
INSERT INTO task_summaries (uid, namespace, name, state, state_time, preview, created_at, updated_at)
VALUES (@uid, @namespace, @name, @state, coalesce(sqlc.narg('state_time')::timestamptz, 'epoch'), @preview, @created_at, @updated_at)
ON CONFLICT (uid) DO NOTHING;

-- name: ImportBranch :one
INSERT INTO branches (
    task_uid, number, parent_id, reason,
    base_position, base_tool_calls, base_input_tokens, base_output_tokens, base_cost_micro_usd,
    head_position, head_tool_calls, head_input_tokens, head_output_tokens, head_cost_micro_usd,
    head_boundary, head_settled, head_open_calls, created_at, base_digest, head_digest
) VALUES (
    sqlc.narg('task_uid'), @number, sqlc.narg('parent_id'), @reason,
    @base_position, @base_tool_calls, @base_input_tokens, @base_output_tokens, @base_cost_micro_usd,
    @head_position, @head_tool_calls, @head_input_tokens, @head_output_tokens, @head_cost_micro_usd,
    @head_boundary, @head_settled, @head_open_calls, @created_at, @digest, @digest
)
RETURNING id;

-- name: SetBranchDigests :exec
UPDATE branches SET base_digest = @base, head_digest = @head WHERE id = @id;

-- name: ActivateBranch :exec
UPDATE tasks SET active_branch = @branch WHERE uid = @uid;

-- name: ImportSnapshot :execrows
UPDATE entries SET snapshot = @ordinal WHERE branch_id = @branch_id AND position = @position;

-- name: ImportOperation :exec
INSERT INTO operations (task_uid, operation_id, attempt, checkpoint, asked_position, reason, branch, position, tool_calls, created_at, details)
VALUES (@task_uid, @operation_id, @attempt, @checkpoint, @asked_position, @reason, @branch, @position, @tool_calls, @created_at, @details);
