-- name: InsertCheckpoint :execrows
-- Values that can be derived from elsewhere are left out; see recorded_checkpoints.
WITH known AS (
    SELECT id FROM checkpoint_contexts
    WHERE checkpoint_contexts.task_id = @task_id::integer AND base = @base::bytea AND git_head = @git_head::bytea
        AND git_branch = @git_branch::text AND session = @session::text
    LIMIT 1
), made AS (
    INSERT INTO checkpoint_contexts (task_id, base, git_head, git_branch, session)
    SELECT @task_id::integer, @base::bytea, @git_head::bytea, @git_branch::text, @session::text
    WHERE NOT EXISTS (SELECT FROM known)
    RETURNING id
)
INSERT INTO checkpoints (
    branch_id, time, position, bytes, input_tokens, output_tokens, cost_micro_usd, task_id, number, attempt, context_id,
    files, turn, files_changed, lines_added, lines_removed, dirty_file_count, skipped_count, durable, namespace, trigger,
    commit, tree, state_commit, parent, message, requested_by_name, requested_by_uid, dirty_files, skipped, risky_tool, changes,
    consistency, frozen_ms
) SELECT
    b.id, @time::timestamptz, @position::bigint, nullif(@bytes::bigint, 0),
    nullif(@input_tokens::bigint, coalesce(e.input_tokens, b.base_input_tokens)),
    nullif(@output_tokens::bigint, coalesce(e.output_tokens, b.base_output_tokens)),
    nullif(@cost_micro_usd::bigint, coalesce(e.cost_micro_usd, b.base_cost_micro_usd)),
    @task_id::integer, @number::integer, @attempt::integer,
    coalesce((SELECT id FROM known), (SELECT id FROM made)),
    nullif(@files::integer, 0), nullif(@turn::integer, 0), nullif(@files_changed::integer, 0),
    nullif(@lines_added::integer, 0), nullif(@lines_removed::integer, 0),
    nullif(@dirty_file_count::integer, 0), nullif(@skipped_count::integer, 0), @durable::boolean, @namespace::text, @trigger::text,
    @commit::bytea, @tree::bytea, @state_commit::bytea, nullif(@parent::bytea, p.commit), nullif(@message::text, ''),
    nullif(@requested_by_name::text, ''), nullif(@requested_by_uid::text, ''),
    nullif(@dirty_files::text[], '{}'), nullif(@skipped::text, ''), nullif(@risky_tool::text, ''), nullif(@changes::text, ''),
    nullif(@consistency::text, ''), nullif(@frozen_ms::integer, 0)
FROM branches b
LEFT JOIN entries e ON e.branch_id = b.id AND e.position = @position::bigint
LEFT JOIN checkpoints p ON p.task_id = @task_id::integer AND p.number = @previous
WHERE b.id = @branch_id
ON CONFLICT (task_id, number) DO NOTHING;

-- name: KnownCheckpoints :many
SELECT number FROM checkpoints WHERE task_id = @task_id AND number = ANY (@numbers::integer[]);

-- name: SetCheckpointDurable :execrows
-- A checkpoint that is sent again has reached the gitstore meanwhile, or has been
-- requested meanwhile; nothing else about it ever changes this way.
UPDATE checkpoints
SET durable = durable OR @durable::boolean,
    refused = CASE WHEN @durable::boolean THEN NULL ELSE refused END,
    lost = lost AND NOT @durable::boolean,
    requested_by_name = CASE WHEN requested_by_uid IS NULL THEN nullif(@requested_by_name::text, '') ELSE requested_by_name END,
    requested_by_uid = CASE WHEN requested_by_uid IS NULL THEN nullif(@requested_by_uid::text, '') ELSE requested_by_uid END
WHERE task_id = @task_id AND number = @number AND commit = @commit;

-- name: SetCheckpointRefused :exec
-- A checkpoint that the gitstore has was not refused.
UPDATE checkpoints SET refused = @refused::text
WHERE task_id = @task_id AND number = @number AND NOT durable;

-- name: Checkpoint :one
SELECT * FROM recorded_checkpoints WHERE task_uid = @task_uid AND number = @number::integer;

-- name: CheckpointsAfter :many
SELECT * FROM recorded_checkpoints WHERE task_uid = @task_uid AND number > @after::integer ORDER BY number LIMIT @up_to_rows;

-- name: CheckpointsBefore :many
SELECT * FROM recorded_checkpoints WHERE task_uid = @task_uid AND number < @before::integer ORDER BY number DESC LIMIT @up_to_rows;

-- name: LatestCheckpoints :many
SELECT t.uid, c.number, coalesce(c.files_changed, 0)::integer AS files_changed,
    coalesce(c.lines_added, 0)::integer AS lines_added, coalesce(c.lines_removed, 0)::integer AS lines_removed
FROM tasks t JOIN checkpoints c ON c.task_id = t.id AND c.number = t.latest_checkpoint
WHERE t.uid = ANY (@task_uids::text[]) AND t.namespace = @namespace;

-- name: CheckpointChanges :one
SELECT coalesce(c.changes, '')::text FROM checkpoints c JOIN tasks t ON t.id = c.task_id
WHERE t.uid = @task_uid AND c.number = @number::integer;

-- name: CheckpointBefore :one
-- The task's newest checkpoint at or before a position of a branch, of those taken by a time.
WITH RECURSIVE chain AS (
    SELECT b.id, b.parent_id, b.base_position AS low, @upto::bigint AS high
    FROM branches b WHERE b.id = @branch_id
    UNION ALL
    SELECT p.id, p.parent_id, p.base_position, least(c.high, c.low)
    FROM chain c JOIN branches p ON p.id = c.parent_id
)
SELECT c.number
FROM tasks t JOIN checkpoints c ON c.task_id = t.id JOIN chain ON chain.id = c.branch_id
WHERE t.uid = @task_uid AND c.position <= chain.high AND c.time <= @taken_by::timestamptz
ORDER BY c.position DESC, c.number DESC
LIMIT 1;

-- name: FirstCheckpointAfter :one
-- The task's first checkpoint that was taken after a time, on whatever branch.
SELECT c.number, c.branch_id, c.position, c.trigger, c.attempt
FROM tasks t JOIN checkpoints c ON c.task_id = t.id
WHERE t.uid = @task_uid AND c.time > @after::timestamptz
ORDER BY c.number
LIMIT 1;

-- name: CheckpointElsewhere :one
-- The task's newest checkpoint behind another one, of those taken by a time, that is not of a branch or
-- of what that inherits.
WITH RECURSIVE chain AS (
    SELECT b.id, b.parent_id, b.base_position AS low, b.head_position AS high
    FROM branches b WHERE b.id = @branch_id
    UNION ALL
    SELECT p.id, p.parent_id, p.base_position, least(c.high, c.low)
    FROM chain c JOIN branches p ON p.id = c.parent_id
)
SELECT c.number
FROM tasks t JOIN checkpoints c ON c.task_id = t.id
WHERE t.uid = @task_uid AND c.number > @after::integer AND c.time <= @taken_by::timestamptz
    AND NOT EXISTS (SELECT FROM chain WHERE chain.id = c.branch_id AND c.position <= chain.high)
ORDER BY c.number DESC
LIMIT 1;

-- name: Operation :one
SELECT * FROM operations WHERE task_uid = @task_uid AND operation_id = @operation_id;

-- name: NoteOperation :exec
-- A refused operation may be requested again.
INSERT INTO operations (task_uid, operation_id, attempt, checkpoint, asked_position, reason, branch, position, tool_calls, refused, details)
VALUES (@task_uid, @operation_id, @attempt, @checkpoint, @asked_position, @reason, @branch, @position, @tool_calls, @refused, @details)
ON CONFLICT (task_uid, operation_id) DO UPDATE SET
    attempt = excluded.attempt, checkpoint = excluded.checkpoint, asked_position = excluded.asked_position, reason = excluded.reason,
    branch = excluded.branch, position = excluded.position, tool_calls = excluded.tool_calls, refused = excluded.refused,
    details = excluded.details;

-- name: NamedOperations :many
-- Those of a task's operations that were carried out.
SELECT o.operation_id, o.details FROM operations o JOIN tasks t ON t.uid = o.task_uid
WHERE o.task_uid = @task_uid AND t.namespace = @namespace AND o.operation_id = ANY (@operation_ids::text[]) AND o.refused = '';

-- name: NewestOperation :one
-- The newest operation that was carried out and whose key matches a pattern.
SELECT o.operation_id FROM operations o JOIN tasks t ON t.uid = o.task_uid
WHERE o.task_uid = @task_uid AND t.namespace = @namespace AND o.operation_id LIKE @pattern AND o.refused = ''
ORDER BY o.ordinal DESC LIMIT 1;

-- name: LatestOperations :many
SELECT operation_id, branch, position, tool_calls, refused FROM operations
WHERE task_uid = @task_uid ORDER BY ordinal DESC LIMIT @up_to_rows;

-- name: PushedCheckpoints :many
SELECT c.number, c.lost FROM checkpoints c JOIN tasks t ON t.id = c.task_id
WHERE t.uid = @task_uid AND (c.durable OR c.lost) ORDER BY c.number;

-- name: SetCheckpointLost :exec
-- The checkpoint no longer exists anywhere, whether it was durable or still to be
-- pushed.
UPDATE checkpoints SET durable = false, lost = true, refused = @why::text
WHERE task_id = @task_id AND number = @number;
