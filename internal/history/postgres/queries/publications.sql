-- name: SetPublication :exec
-- Events may be recorded again, in any order.
INSERT INTO publications AS p (task_uid, namespace, ref, commit, onto, checkpoint, time)
VALUES (@task_uid, @namespace, @ref, @commit, @onto, @checkpoint, @time)
ON CONFLICT (task_uid, namespace, ref) DO UPDATE
SET commit = excluded.commit, onto = excluded.onto, checkpoint = excluded.checkpoint, time = excluded.time
WHERE p.time <= excluded.time;

-- name: Publication :one
SELECT commit, onto, checkpoint, time FROM publications
WHERE task_uid = @task_uid AND namespace = @namespace AND ref = @ref;

-- name: MovePublications :exec
UPDATE publications SET task_uid = @uid::text WHERE task_uid = @former_uid::text AND namespace = @namespace;

-- name: DeletePublications :exec
DELETE FROM publications WHERE task_uid = @task_uid AND namespace = @namespace;
