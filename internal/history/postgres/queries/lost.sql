-- name: LostCheckpoints :many
SELECT t.uid, t.namespace, c.number FROM checkpoints c JOIN tasks t ON t.id = c.task_id
WHERE c.lost;
