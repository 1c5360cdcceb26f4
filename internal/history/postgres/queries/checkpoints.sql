-- name: InsertCheckpoint :execrows
INSERT INTO checkpoints (
    task_uid, number, attempt, sequence, trigger, time, message, commit, tree, parent, base, state_commit,
    files_changed, lines_added, lines_removed, git_head, git_branch, dirty_files, dirty_file_count,
    files, bytes, skipped, skipped_count, durable, requested_by_name, requested_by_uid,
    branch_id, branch_number, position, boundary, tool_calls, input_tokens, output_tokens, cost_micro_usd
) VALUES (
    @task_uid, @number, @attempt, @sequence, @trigger, @time, @message, @commit, @tree, @parent, @base, @state_commit,
    @files_changed, @lines_added, @lines_removed, @git_head, @git_branch, @dirty_files, @dirty_file_count,
    @files, @bytes, @skipped, @skipped_count, @durable, @requested_by_name, @requested_by_uid,
    @branch_id, @branch_number, @position, @boundary, @tool_calls, @input_tokens, @output_tokens, @cost_micro_usd
)
ON CONFLICT (task_uid, number) DO NOTHING;

-- name: SetCheckpointDurable :execrows
-- A checkpoint that is told again has reached the gitstore since, or somebody
-- has asked for it since; nothing else of it ever changes by that.
UPDATE checkpoints
SET durable = durable OR @durable::boolean,
    refused = CASE WHEN @durable::boolean THEN '' ELSE refused END,
    requested_by_name = CASE WHEN requested_by_uid = '' THEN @requested_by_name::text ELSE requested_by_name END,
    requested_by_uid = CASE WHEN requested_by_uid = '' THEN @requested_by_uid::text ELSE requested_by_uid END
WHERE task_uid = @task_uid AND number = @number AND commit = @commit;

-- name: SetCheckpointRefused :exec
-- What the gitstore has, it has not refused.
UPDATE checkpoints SET refused = @refused
WHERE task_uid = @task_uid AND number = @number AND NOT durable;

-- name: Checkpoint :one
SELECT * FROM checkpoints WHERE task_uid = @task_uid AND number = @number;

-- name: CheckpointsAfter :many
SELECT * FROM checkpoints WHERE task_uid = @task_uid AND number > @after ORDER BY number LIMIT @up_to_rows;

-- name: Operation :one
SELECT * FROM operations WHERE task_uid = @task_uid AND operation_id = @operation_id;

-- name: InsertOperation :exec
INSERT INTO operations (task_uid, operation_id, attempt, checkpoint, reason, branch, position, tool_calls)
VALUES (@task_uid, @operation_id, @attempt, @checkpoint, @reason, @branch, @position, @tool_calls);

-- name: LatestOperations :many
SELECT operation_id FROM operations WHERE task_uid = @task_uid ORDER BY ordinal DESC LIMIT @up_to_rows;

-- name: InsertCheckpointChanges :exec
INSERT INTO checkpoint_changes (task_uid, number, changes) VALUES (@task_uid, @number, @changes);

-- name: CheckpointChanges :one
SELECT changes FROM checkpoint_changes WHERE task_uid = @task_uid AND number = @number;
