-- name: InsertTask :execrows
INSERT INTO tasks (uid, namespace, name, attempt, active_branch)
VALUES (@uid, @namespace, @name, @attempt, 0)
ON CONFLICT (uid) DO NOTHING;

-- name: SetActiveBranch :exec
UPDATE tasks SET active_branch = @branch, updated_at = now() WHERE uid = @uid;

-- name: LockTask :one
-- The task and its active branch; nobody else writes to either until the
-- transaction ends.
SELECT sqlc.embed(t), sqlc.embed(b)
FROM tasks t JOIN branches b ON b.id = t.active_branch
WHERE t.uid = @uid
FOR UPDATE OF t;

-- name: Task :one
SELECT sqlc.embed(t), sqlc.embed(b)
FROM tasks t JOIN branches b ON b.id = t.active_branch
WHERE t.uid = @uid;

-- name: NewestTaskNamed :one
SELECT uid FROM tasks
WHERE namespace = @namespace AND name = @name
ORDER BY created_at DESC, uid DESC
LIMIT 1;

-- name: SetTaskHead :exec
UPDATE tasks
SET attempt = greatest(attempt, @attempt), last_sequence = @last_sequence,
    checkpoint_count = @checkpoint_count, latest_checkpoint = @latest_checkpoint, updated_at = now()
WHERE uid = @uid;

-- name: Notify :exec
SELECT pg_notify('clew_history', @payload::text);
