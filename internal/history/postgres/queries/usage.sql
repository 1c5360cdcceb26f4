-- name: TaskUsage :one
-- Beside what is counted: whether anything is, and up to which number transitions are recorded.
SELECT (u.task_uid IS NOT NULL)::boolean AS known, coalesce(u.event_bytes, 0)::bigint AS event_bytes, coalesce(u.call_bytes, 0)::bigint AS call_bytes,
    coalesce(u.left_out, 0)::bigint AS left_out, u.left_out_since, coalesce(r.sequence, 0)::bigint AS recorded
FROM (SELECT @task_uid::text AS uid) k
LEFT JOIN task_usage u ON u.task_uid = k.uid AND u.namespace = @namespace
LEFT JOIN recorded_transitions r ON r.task_uid = k.uid;

-- name: ChargeEvents :exec
INSERT INTO task_usage AS u (task_uid, namespace, event_bytes) VALUES (@task_uid, @namespace, @bytes)
ON CONFLICT (task_uid, namespace) DO UPDATE SET event_bytes = u.event_bytes + excluded.event_bytes, noted_at = now();

-- name: ChargeToolCalls :exec
-- Counts all calls of a task anew.
INSERT INTO task_usage AS u (task_uid, namespace, call_bytes)
SELECT t.uid, t.namespace, coalesce((SELECT sum(c.bytes) FROM tool_calls c WHERE c.task_id = t.id), 0)::bigint
FROM tasks t WHERE t.id = @task_id
ON CONFLICT (task_uid, namespace) DO UPDATE SET call_bytes = excluded.call_bytes, noted_at = now();

-- name: SetLeftOut :exec
INSERT INTO task_usage AS u (task_uid, namespace, left_out, left_out_since)
VALUES (@task_uid, @namespace, @left_out, sqlc.narg('since'))
ON CONFLICT (task_uid, namespace) DO UPDATE SET left_out = excluded.left_out, left_out_since = excluded.left_out_since, noted_at = now();

-- name: SetEventMessage :execrows
UPDATE events SET message = @message WHERE id = @id AND time = @time;

-- name: MoveUsage :exec
-- The former task's calls are not the new one's.
INSERT INTO task_usage AS u (task_uid, namespace, event_bytes)
SELECT @uid::text, f.namespace, f.event_bytes FROM task_usage f WHERE f.task_uid = @former_uid::text AND f.namespace = @namespace
ON CONFLICT (task_uid, namespace) DO UPDATE SET event_bytes = u.event_bytes + excluded.event_bytes, noted_at = now();

-- name: JoinUsage :exec
WITH late AS (DELETE FROM task_usage l WHERE l.namespace = @former_key::text RETURNING l.task_uid, l.event_bytes, l.call_bytes, l.noted_at)
INSERT INTO task_usage AS u (task_uid, namespace, event_bytes, call_bytes, noted_at)
SELECT task_uid, @key::text, event_bytes, call_bytes, noted_at FROM late
ON CONFLICT (task_uid, namespace) DO UPDATE
SET event_bytes = u.event_bytes + excluded.event_bytes, call_bytes = u.call_bytes + excluded.call_bytes;

-- name: DeleteUsage :exec
DELETE FROM task_usage WHERE task_uid = @task_uid AND namespace = @namespace;

-- name: ForgetUsage :one
-- Of tasks of which nothing was recorded since a time: what was counted has exceeded its retention. Of
-- those that never began nothing is left then. One that still exists is told again from its status.
WITH idle AS (
    DELETE FROM task_usage u WHERE (u.task_uid, u.namespace) IN (
        SELECT o.task_uid, o.namespace FROM task_usage o WHERE o.noted_at < @before::timestamptz AND o.call_bytes = 0 LIMIT @up_to_rows)
    RETURNING u.task_uid, u.namespace
), unbegun AS (
    SELECT i.task_uid, i.namespace FROM idle i
    WHERE NOT EXISTS (SELECT FROM tasks t WHERE t.uid = i.task_uid) AND NOT EXISTS (SELECT FROM events e WHERE e.task_uid = i.task_uid)
), unlisted AS (
    DELETE FROM task_summaries s USING unbegun n WHERE s.uid = n.task_uid AND s.namespace = n.namespace
), unnoted AS (
    DELETE FROM recorded_transitions r USING unbegun n WHERE r.task_uid = n.task_uid
)
SELECT count(*)::bigint FROM idle;
