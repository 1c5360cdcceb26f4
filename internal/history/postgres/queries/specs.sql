-- name: KeepSpec :exec
-- Replaces the spec of a task, if it is another one.
INSERT INTO task_specs (uid, namespace, spec, variables, fields) VALUES (@uid, @namespace, @spec, @variables, @fields)
ON CONFLICT (uid) DO UPDATE SET spec = excluded.spec, variables = excluded.variables, fields = excluded.fields, kept_at = now()
WHERE task_specs.namespace = excluded.namespace
    AND (task_specs.spec, task_specs.variables, task_specs.fields) IS DISTINCT FROM (excluded.spec, excluded.variables, excluded.fields);

-- name: KeptSpec :one
SELECT spec, variables, fields FROM task_specs WHERE uid = @uid AND namespace = @namespace;

-- name: MoveSpec :exec
-- The task that continues a history may have a spec by now; its own counts.
UPDATE task_specs SET uid = @uid::text
WHERE task_specs.uid = @former_uid::text AND NOT EXISTS (SELECT FROM task_specs s WHERE s.uid = @uid::text);

-- name: DeleteSpec :exec
DELETE FROM task_specs WHERE uid = @uid;

-- name: IdleSpecs :many
-- Kept specs of tasks that have not begun, which are no part of a history, oldest first.
SELECT s.uid, s.kept_at FROM task_specs s
WHERE s.kept_at < @before::timestamptz AND (s.kept_at, s.uid) > (@after_time::timestamptz, @after_uid::text)
    AND NOT EXISTS (SELECT FROM tasks t WHERE t.uid = s.uid)
ORDER BY s.kept_at, s.uid
LIMIT @up_to_rows;

-- name: DeleteIdleSpec :exec
DELETE FROM task_specs WHERE task_specs.uid = @uid AND NOT EXISTS (SELECT FROM tasks t WHERE t.uid = @uid);
