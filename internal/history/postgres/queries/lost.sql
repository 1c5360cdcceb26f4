-- name: LostCheckpoints :many
SELECT c.task_id, t.uid, t.namespace, c.number FROM checkpoints c JOIN tasks t ON t.id = c.task_id
WHERE c.lost AND (c.task_id, c.number) > (@after_task::integer, @after_number::integer)
ORDER BY c.task_id, c.number LIMIT @up_to_rows;
