-- name: FormerTask :one
-- The newest task whose history a task has adopted.
SELECT a.former_uid, coalesce(s.fork, '')::text AS fork, coalesce(s.start_from, '')::text AS start_from, coalesce(s.start_uid, '')::text AS start_uid,
    coalesce(s.start_checkpoint, 0)::bigint AS start_checkpoint, coalesce(s.start_commit, '')::text AS start_commit,
    coalesce(s.start_position, 0)::bigint AS start_position, coalesce(s.phase, '')::text AS phase
FROM adoptions a LEFT JOIN task_specs s ON s.uid = a.uid
WHERE a.uid = @uid AND a.namespace = @namespace
ORDER BY a.adopted_at DESC, a.former_uid LIMIT 1;

-- name: Adoptable :one
-- The newest task of a name that has begun here. A history that was imported has no code, and
-- whoever imported it chose its content. One that is being deleted may have lost its code.
SELECT t.uid, coalesce(s.fork, '')::text AS fork, coalesce(s.start_from, '')::text AS start_from, coalesce(s.start_uid, '')::text AS start_uid,
    coalesce(s.start_checkpoint, 0)::bigint AS start_checkpoint, coalesce(s.start_commit, '')::text AS start_commit,
    coalesce(s.start_position, 0)::bigint AS start_position, coalesce(s.phase, '')::text AS phase
FROM tasks t LEFT JOIN task_specs s ON s.uid = t.uid
WHERE t.namespace = @namespace AND t.name = @name AND t.deletion_since IS NULL
    AND NOT EXISTS (SELECT FROM events e WHERE e.task_uid = t.uid AND e.namespace = t.namespace
        AND (e.imported_by <> '' OR e.reason = 'HistoryImported'))
ORDER BY t.id DESC LIMIT 1;

-- name: Imported :one
-- Whether a history was imported; see Adoptable.
SELECT EXISTS (SELECT FROM events e WHERE e.task_uid = @uid AND e.namespace = @namespace
    AND (e.imported_by <> '' OR e.reason = 'HistoryImported'));

-- name: Adopted :one
-- The task that has adopted the history of another one.
SELECT uid FROM adoptions WHERE former_uid = @former_uid AND namespace = @namespace;

-- name: IsFormer :one
-- Whether another task has adopted the history of this one.
SELECT EXISTS (SELECT FROM adoptions WHERE former_uid = @uid);

-- name: ForgetTransitions :exec
-- The task that continues numbers its own transitions from 1.
DELETE FROM recorded_transitions WHERE task_uid = @uid;

-- name: MoveSummary :exec
-- The contract was that of the former task: the one that adopts its history tells its own.
UPDATE task_summaries SET uid = @uid::text, contract = '' WHERE task_summaries.uid = @former_uid::text;

-- name: MoveEvents :exec
UPDATE events SET task_uid = @uid::text WHERE task_uid = @former_uid::text AND namespace = @namespace;

-- name: MoveTask :exec
-- Its branches and operations follow.
UPDATE tasks SET uid = @uid::text, created_at = now(), updated_at = now(), gone_since = NULL, stale = true WHERE tasks.uid = @former_uid::text;

-- name: MoveAdoptions :exec
UPDATE adoptions SET uid = @uid::text WHERE adoptions.uid = @former_uid::text;

-- name: InsertAdoption :exec
INSERT INTO adoptions (former_uid, uid, namespace) VALUES (@former_uid, @uid, @namespace);

-- name: FormerTasks :many
-- The tasks whose history a task has adopted, with the newest namespace that has it.
SELECT a.former_uid, coalesce((SELECT n.uid FROM namespaces n WHERE n.key = a.namespace ORDER BY n.since DESC, n.uid LIMIT 1), '')::text AS namespace_uid
FROM adoptions a WHERE a.uid = @uid ORDER BY a.adopted_at, a.former_uid;

-- name: Adoptions :many
SELECT a.former_uid, a.uid, a.namespace,
    coalesce((SELECT n.uid FROM namespaces n WHERE n.key = a.namespace ORDER BY n.since DESC, n.uid LIMIT 1), '')::text AS namespace_uid
FROM adoptions a WHERE a.former_uid > @after ORDER BY a.former_uid LIMIT @up_to_rows;

-- name: BuryFormerTasks :exec
-- The tasks whose history a deleted one had adopted may write no more either.
WITH gone AS (DELETE FROM adoptions WHERE adoptions.uid = @uid RETURNING former_uid, namespace)
INSERT INTO deleted_tasks (uid, namespace) SELECT former_uid, namespace FROM gone ON CONFLICT DO NOTHING;
