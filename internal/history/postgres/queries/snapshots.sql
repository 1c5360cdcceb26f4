-- name: InsertSnapshots :exec
INSERT INTO snapshots (time, branch_id, position, input_tokens, output_tokens, cost_micro_usd, task_id, ordinal)
SELECT unnest(@time::timestamptz[]), @branch_id::bigint, unnest(@position::bigint[]), unnest(@input_tokens::bigint[]),
    unnest(@output_tokens::bigint[]), unnest(@cost_micro_usd::bigint[]), @task_id::integer, unnest(@ordinal::integer[]);

-- name: SnapshotsAfter :many
SELECT s.ordinal, s.time, s.position, s.input_tokens, s.output_tokens, s.cost_micro_usd, b.number AS branch_number,
    coalesce(e.tool_calls, b.base_tool_calls)::bigint AS tool_calls, coalesce(e.digest, b.base_digest)::bytea AS digest,
    coalesce((SELECT max(c.number) FROM checkpoints c
        WHERE c.task_id = s.task_id AND c.branch_id = s.branch_id AND c.position <= s.position), 0)::bigint AS checkpoint
FROM tasks t
JOIN snapshots s ON s.task_id = t.id
JOIN branches b ON b.id = s.branch_id
LEFT JOIN entries e ON e.branch_id = s.branch_id AND e.position = s.position
WHERE t.uid = @task_uid AND s.ordinal > @after::integer
ORDER BY s.ordinal
LIMIT @up_to_rows;

-- name: DeleteSnapshotsBefore :execrows
DELETE FROM snapshots WHERE (task_id, ordinal) IN (
    SELECT s.task_id, s.ordinal FROM snapshots s WHERE s.time < @before::timestamptz ORDER BY s.time LIMIT @up_to_rows
);
