-- name: NamespaceKey :one
SELECT key FROM namespaces WHERE name = @name AND uid = @uid;

-- name: LockNamespaces :exec
-- Keys are given and histories granted one at a time.
SELECT pg_advisory_xact_lock(1667593079, 1);

-- name: NamespaceKnown :one
SELECT EXISTS (SELECT FROM namespaces WHERE name = @name);

-- name: NamespaceRows :one
-- Whether anything is stored under a key, and when its newest task began.
SELECT (EXISTS (SELECT FROM task_summaries s WHERE s.namespace = @key)
        OR EXISTS (SELECT FROM deleted_tasks d WHERE d.namespace = @key)
        OR EXISTS (SELECT FROM events e WHERE e.namespace = @key))::boolean AS any_row,
    coalesce((SELECT max(s.created_at) FROM task_summaries s WHERE s.namespace = @key), 'epoch')::timestamptz AS newest;

-- name: Namespaces :many
SELECT name, uid, key FROM namespaces ORDER BY name, since, uid;

-- name: InsertNamespace :exec
INSERT INTO namespaces (name, uid, key) VALUES (@name, @uid, @key) ON CONFLICT DO NOTHING;

-- name: JoinNamespaces :exec
-- All namespaces of a key get another one, at the request of one of them.
UPDATE namespaces SET key = @key::text, joined = joined || ARRAY[@former_key::text],
    since = CASE WHEN namespaces.uid = @uid THEN clock_timestamp() ELSE namespaces.since END
WHERE namespaces.key = @former_key::text;

-- name: NewestNamespace :one
-- The namespace that was the last to get a key.
SELECT uid FROM namespaces WHERE key = @key ORDER BY since DESC, uid LIMIT 1;

-- name: JoinedKeys :many
SELECT DISTINCT unnest(joined)::text FROM namespaces WHERE key = @key;

-- name: EarlierNamespaces :many
-- The UIDs of other namespaces of a name that have histories of a task.
SELECT n.uid FROM namespaces n
WHERE n.name = @name AND n.key <> @key AND EXISTS (SELECT FROM tasks t WHERE t.namespace = n.key AND t.name = @task)
ORDER BY n.uid;

-- name: JoinTasks :exec
UPDATE tasks SET namespace = @key::text, stale = true WHERE tasks.namespace = @former_key::text;

-- name: JoinSummaries :exec
UPDATE task_summaries SET namespace = @key::text WHERE task_summaries.namespace = @former_key::text;

-- name: JoinCheckpoints :exec
UPDATE checkpoints SET namespace = @key::text WHERE checkpoints.namespace = @former_key::text;

-- name: JoinEvents :exec
UPDATE events SET namespace = @key::text WHERE events.namespace = @former_key::text;

-- name: JoinDeletedTasks :exec
WITH gone AS (DELETE FROM deleted_tasks d WHERE d.namespace = @former_key::text RETURNING d.uid, d.deleted_at)
INSERT INTO deleted_tasks (uid, namespace, deleted_at) SELECT uid, @key::text, deleted_at FROM gone ON CONFLICT DO NOTHING;

-- name: JoinAdoptions :exec
UPDATE adoptions SET namespace = @key::text WHERE adoptions.namespace = @former_key::text;

-- name: JoinSpecs :exec
UPDATE task_specs SET namespace = @key::text WHERE task_specs.namespace = @former_key::text;

-- name: JoinPublications :exec
-- A process that did not know the grant yet may have recorded a publication of the same task and ref.
WITH late AS (DELETE FROM publications l WHERE l.namespace = @former_key::text RETURNING l.task_uid, l.ref, l.commit, l.onto, l.checkpoint, l.time, l.number)
INSERT INTO publications AS p (task_uid, namespace, ref, commit, onto, checkpoint, time, number)
SELECT task_uid, @key::text, ref, commit, onto, checkpoint, time, number FROM late
ON CONFLICT (task_uid, namespace, ref) DO UPDATE
SET commit = excluded.commit, onto = excluded.onto, checkpoint = excluded.checkpoint, time = excluded.time, number = excluded.number
WHERE (p.number, p.time) <= (excluded.number, excluded.time);

-- name: JoinAwaitedSources :exec
UPDATE awaited_sources SET namespace = @key::text WHERE awaited_sources.namespace = @former_key::text;

-- name: JoinVerifications :exec
UPDATE verifications SET namespace = @key::text WHERE verifications.namespace = @former_key::text;
