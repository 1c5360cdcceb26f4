-- name: NameCheckpoint :execrows
INSERT INTO checkpoint_names (task_id, name, number, object_uid)
SELECT t.id, @name, @number, @object_uid FROM tasks t WHERE t.uid = @task_uid AND t.namespace = @namespace
ON CONFLICT (task_id, name) DO UPDATE SET number = excluded.number, object_uid = excluded.object_uid;

-- name: NamedCheckpoints :many
-- The names for which an object is awaited, or that one of these objects has, of checkpoints that are
-- recorded.
SELECT n.name, n.number, n.object_uid
FROM tasks t JOIN checkpoint_names n ON n.task_id = t.id JOIN checkpoints c ON c.task_id = t.id AND c.number = n.number
WHERE t.uid = @task_uid AND t.namespace = @namespace AND (n.object_uid = '' OR n.object_uid = ANY (@object_uids::text[]))
ORDER BY n.name;

-- name: ClaimCheckpoint :one
UPDATE checkpoint_names n SET object_uid = @object_uid
FROM tasks t JOIN checkpoints c ON c.task_id = t.id
WHERE t.uid = @task_uid AND t.namespace = @namespace AND n.task_id = t.id AND c.number = n.number
    AND n.name = @name AND n.object_uid IN ('', @object_uid)
RETURNING n.number;

-- name: NameRequested :exec
-- The objects that checkpoints were taken for, as far as the manager had not come to name them.
INSERT INTO checkpoint_names (task_id, name, number, object_uid)
SELECT DISTINCT ON (c.requested_by_name) c.task_id, c.requested_by_name, c.number, ''
FROM checkpoints c WHERE c.task_id = @task_id AND c.requested_by_name IS NOT NULL
ORDER BY c.requested_by_name, c.number DESC
ON CONFLICT (task_id, name) DO UPDATE SET number = greatest(checkpoint_names.number, excluded.number);

-- name: AwaitNames :exec
UPDATE checkpoint_names SET object_uid = '' WHERE task_id = @task_id;

-- name: DeleteCheckpointNames :exec
DELETE FROM checkpoint_names WHERE task_id = @task_id;
