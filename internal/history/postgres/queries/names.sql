-- name: NameCheckpoint :exec
INSERT INTO checkpoint_names (task_id, name, number, object_uid) VALUES (@task_id, @name, @number, @object_uid)
ON CONFLICT (task_id, name) DO UPDATE SET number = excluded.number, object_uid = excluded.object_uid, named_at = now()
WHERE (checkpoint_names.number, checkpoint_names.object_uid) IS DISTINCT FROM (excluded.number, excluded.object_uid);

-- name: DropOldNames :exec
-- All but the newest names of a task.
DELETE FROM checkpoint_names n WHERE n.task_id = @task_id AND n.name IN (
    SELECT o.name FROM checkpoint_names o WHERE o.task_id = @task_id
    ORDER BY o.named_at DESC, o.number DESC, o.name OFFSET @most);

-- name: NamesBytes :one
-- Roughly what the names of a task take.
SELECT coalesce(sum(octet_length(name) + @each::int), 0)::bigint FROM checkpoint_names WHERE task_id = @task_id;

-- name: AddStoredBytes :exec
UPDATE tasks SET stored_bytes = greatest(stored_bytes + @more::bigint, 0) WHERE id = @task_id;

-- name: NamedCheckpoints :many
-- Those of the names for which an object is awaited, or that one of these objects has, of checkpoints
-- that are recorded.
SELECT n.name, n.number, n.object_uid
FROM tasks t JOIN checkpoint_names n ON n.task_id = t.id JOIN checkpoints c ON c.task_id = t.id AND c.number = n.number
WHERE t.uid = @task_uid AND t.namespace = @namespace AND n.name = ANY (@names::text[])
    AND (n.object_uid = '' OR n.object_uid = ANY (@object_uids::text[]))
ORDER BY n.name;

-- name: ClaimCheckpoint :one
UPDATE checkpoint_names n SET object_uid = @object_uid
FROM tasks t JOIN checkpoints c ON c.task_id = t.id
WHERE t.uid = @task_uid AND t.namespace = @namespace AND n.task_id = t.id AND c.number = n.number
    AND n.name = @name AND n.object_uid IN ('', @object_uid)
RETURNING n.number;

-- name: DeleteCheckpointName :exec
DELETE FROM checkpoint_names WHERE task_id = @task_id AND name = @name AND object_uid = @object_uid;

-- name: GiveUpRequested :exec
-- The checkpoint that was taken for an object of the name, unless another object has the name.
UPDATE checkpoints c SET name_given_up = true
WHERE c.task_id = @task_id AND c.number = @number AND c.requested_by_name = @name::text AND NOT c.name_given_up
    AND NOT EXISTS (SELECT FROM checkpoint_names n WHERE n.task_id = @task_id AND n.name = @name::text);

-- name: NameRequested :exec
-- The objects that checkpoints were taken for, as far as the manager had not come to name them.
INSERT INTO checkpoint_names (task_id, name, number, object_uid)
SELECT DISTINCT ON (c.requested_by_name) c.task_id, c.requested_by_name, c.number, ''
FROM (SELECT r.task_id, r.requested_by_name, r.number FROM checkpoints r
      WHERE r.task_id = @task_id AND r.requested_by_name IS NOT NULL AND NOT r.name_given_up
      ORDER BY r.number DESC LIMIT @most) c
ORDER BY c.requested_by_name, c.number DESC
ON CONFLICT (task_id, name) DO UPDATE SET number = greatest(checkpoint_names.number, excluded.number);

-- name: AwaitNames :exec
UPDATE checkpoint_names SET object_uid = '' WHERE task_id = @task_id;

-- name: DeleteCheckpointNames :exec
DELETE FROM checkpoint_names WHERE task_id = @task_id;
