-- name: KeepSpec :exec
-- Replaces the spec of a task, if it is another one. A history starts once, so where it started stays.
INSERT INTO task_specs (uid, namespace, spec, variables, fields, operating_mode, fork, start_from, start_uid, start_checkpoint, start_commit, start_position,
    contract, role, phase, parent_uid)
VALUES (@uid, @namespace, @spec, @variables, @fields, @operating_mode, @fork, @start_from, @start_uid, @start_checkpoint, @start_commit, @start_position,
    @contract, @role, @phase, @parent_uid)
ON CONFLICT (uid) DO UPDATE SET spec = excluded.spec, variables = excluded.variables, fields = excluded.fields, kept_at = now(),
    operating_mode = excluded.operating_mode,
    contract = excluded.contract, role = excluded.role, phase = excluded.phase, parent_uid = excluded.parent_uid,
    fork = CASE WHEN task_specs.start_uid = '' THEN excluded.fork ELSE task_specs.fork END,
    start_from = CASE WHEN task_specs.start_uid = '' THEN excluded.start_from ELSE task_specs.start_from END,
    start_checkpoint = CASE WHEN task_specs.start_uid = '' THEN excluded.start_checkpoint ELSE task_specs.start_checkpoint END,
    start_commit = CASE WHEN task_specs.start_uid = '' THEN excluded.start_commit ELSE task_specs.start_commit END,
    start_position = CASE WHEN task_specs.start_uid = '' THEN excluded.start_position ELSE task_specs.start_position END,
    start_uid = CASE WHEN task_specs.start_uid = '' THEN excluded.start_uid ELSE task_specs.start_uid END
WHERE task_specs.namespace = excluded.namespace
    AND ((task_specs.spec, task_specs.variables, task_specs.fields, task_specs.operating_mode,
            task_specs.contract, task_specs.role, task_specs.phase, task_specs.parent_uid)
            IS DISTINCT FROM (excluded.spec, excluded.variables, excluded.fields, excluded.operating_mode,
            excluded.contract, excluded.role, excluded.phase, excluded.parent_uid)
        OR task_specs.start_uid = '' AND excluded.start_uid <> '');

-- name: KeptSpec :one
SELECT spec, variables, fields, operating_mode, fork, start_from, start_uid, start_checkpoint, start_commit, start_position,
    contract, role, phase, parent_uid
FROM task_specs WHERE uid = @uid AND namespace = @namespace;

-- name: ForkedTasks :many
-- The tasks that have begun and were made for a Fork of a name, newest first.
SELECT t.uid, t.name, s.operating_mode, s.fork, s.start_from, s.start_uid, s.start_checkpoint, s.start_commit, s.start_position
FROM task_specs s JOIN tasks t ON t.uid = s.uid
WHERE s.namespace = @namespace AND s.fork = @fork AND s.fork <> ''
ORDER BY t.id DESC LIMIT @up_to_rows;

-- name: MoveSpec :exec
-- The task that continues a history may have a spec by now; its own counts. The contract was that of the former
-- task.
UPDATE task_specs SET uid = @uid::text, contract = ''
WHERE task_specs.uid = @former_uid::text AND NOT EXISTS (SELECT FROM task_specs s WHERE s.uid = @uid::text);

-- name: MoveStart :exec
-- Where the history started counts, whatever the spec says of the task that continues it.
UPDATE task_specs SET fork = f.fork, start_from = f.start_from, start_uid = f.start_uid, start_checkpoint = f.start_checkpoint,
    start_commit = f.start_commit, start_position = f.start_position
FROM task_specs f WHERE task_specs.uid = @uid::text AND f.uid = @former_uid::text;

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
