-- name: SnapshotsAfter :many
SELECT e.snapshot, e.time, e.position, e.tool_calls, e.input_tokens, e.output_tokens, e.cost_micro_usd, e.digest,
    b.number AS branch_number,
    coalesce((SELECT max(c.number) FROM checkpoints c
        WHERE c.task_id = t.id AND c.branch_id = b.id AND c.position <= e.position), 0)::bigint AS checkpoint,
    b.id AS branch_id, b.parent_id
FROM tasks t
JOIN branches b ON b.task_uid = t.uid
JOIN entries e ON e.branch_id = b.id AND e.snapshot > @after::integer AND e.snapshot > 0
WHERE t.uid = @task_uid
ORDER BY e.snapshot
LIMIT @up_to_rows;

-- name: ForgetSnapshots :execrows
-- A snapshot at a checkpoint is kept as long as the checkpoint.
UPDATE entries SET snapshot = 0
WHERE (branch_id, position) IN (
    SELECT e.branch_id, e.position FROM entries e
    WHERE e.snapshot > 0 AND e.time < @before::timestamptz
        AND NOT EXISTS (
            SELECT FROM branches b JOIN tasks t ON t.uid = b.task_uid JOIN checkpoints c ON c.task_id = t.id
            WHERE b.id = e.branch_id AND c.branch_id = e.branch_id AND c.position = e.position)
    LIMIT @up_to_rows);
