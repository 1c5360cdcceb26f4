-- name: InsertEvents :exec
INSERT INTO events (id, namespace, task_uid, task_name, time, type, reason, actor, message, attempt, checkpoint, details)
SELECT unnest(@id::text[]), unnest(@namespace::text[]), unnest(@task_uid::text[]), unnest(@task_name::text[]),
    unnest(@time::timestamptz[]), unnest(@type::text[]), unnest(@reason::text[]), unnest(@actor::text[]),
    unnest(@message::text[]), unnest(@attempt::bigint[]), unnest(@checkpoint::bigint[]), unnest(@details::jsonb[])
ON CONFLICT DO NOTHING;

-- name: NamespaceTimeline :many
SELECT id, namespace, task_uid, task_name, time, type, reason, actor, message, attempt, checkpoint FROM events
WHERE namespace = @namespace
    AND (time, id) < (@before_time::timestamptz, @before_id::text)
    AND time >= @since::timestamptz
    AND (cardinality(@types::text[]) = 0 OR type = ANY (@types::text[]))
ORDER BY time DESC, id DESC
LIMIT @up_to_rows;

-- name: TaskTimeline :many
SELECT id, namespace, task_uid, task_name, time, type, reason, actor, message, attempt, checkpoint FROM events
WHERE task_uid = @task_uid AND namespace = @namespace
    AND (time, id) < (@before_time::timestamptz, @before_id::text)
    AND time >= @since::timestamptz
    AND (cardinality(@types::text[]) = 0 OR type = ANY (@types::text[]))
ORDER BY time DESC, id DESC
LIMIT @up_to_rows;

-- name: NewestEventTaskNamed :one
-- The newest task of a name that has an event, for tasks that never began.
SELECT task_uid FROM events
WHERE namespace = @namespace AND task_name = @name
ORDER BY time DESC
LIMIT 1;
