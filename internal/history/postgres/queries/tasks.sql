-- name: InsertTask :execrows
INSERT INTO tasks (uid, namespace, name, attempt, active_branch)
VALUES (@uid, @namespace, @name, @attempt, 0)
ON CONFLICT (uid) DO NOTHING;

-- name: SetActiveBranch :exec
UPDATE tasks SET active_branch = @branch, updated_at = now() WHERE uid = @uid;

-- name: LockTask :one
-- Nobody else writes to the task until the transaction ends. Its branch must be
-- read by a statement of its own, after this one: joined here, it would be as
-- it was before the wait for the lock.
SELECT * FROM tasks WHERE uid = @uid FOR UPDATE;

-- name: Task :one
SELECT sqlc.embed(t), sqlc.embed(b)
FROM tasks t JOIN branches b ON b.id = t.active_branch
WHERE t.uid = @uid;

-- name: TaskAttempt :one
SELECT attempt FROM tasks WHERE uid = @uid;

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
