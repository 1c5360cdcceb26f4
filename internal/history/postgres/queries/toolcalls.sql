-- name: DeliverToolCalls :exec
-- What was delivered was answered: the answer itself is gone if this database was restored from an
-- older copy since.
UPDATE tool_calls SET delivered = now(), arguments = '',
    answer = CASE WHEN answered IS NULL THEN @lost::text ELSE answer END, answered = coalesce(answered, now())
WHERE task_id = @task_id AND id = ANY (@ids::text[]) AND delivered IS NULL;

-- name: WithdrawToolCalls :many
-- The conversation in which they were made is taken back before they were answered.
DELETE FROM tool_calls WHERE task_id = @task_id AND attempt < @before AND answered IS NULL RETURNING id, tool;

-- name: EndToolCalls :exec
-- The conversation in which they were made is taken back.
UPDATE tool_calls SET delivered = now() WHERE task_id = @task_id AND attempt < @before AND delivered IS NULL;

-- name: ToolCallByKey :one
SELECT * FROM tool_calls WHERE task_id = @task_id AND call_key = @call_key AND call_key <> '';

-- name: UndeliveredToolCall :one
-- The newest one with that digest.
SELECT * FROM tool_calls WHERE task_id = @task_id AND digest = @digest AND delivered IS NULL
ORDER BY ordinal DESC LIMIT 1;

-- name: UnansweredToolCalls :one
SELECT count(*) FROM tool_calls WHERE task_id = @task_id AND answered IS NULL;

-- name: InsertToolCall :one
INSERT INTO tool_calls (attempt, task_id, id, tool, call_key, digest, arguments)
VALUES (@attempt, @task_id, @id, @tool, @call_key, @digest, @arguments)
RETURNING *;

-- name: DropOldToolCalls :exec
-- All but the newest calls of a task that are answered, so many and of so many bytes in all; those that
-- are not known to be delivered stay longest.
DELETE FROM tool_calls c WHERE c.ordinal IN (
    SELECT o.ordinal FROM (
        SELECT k.ordinal, row_number() OVER newest AS n, sum(k.bytes) OVER newest AS total
        FROM tool_calls k WHERE k.task_id = @task_id AND k.answered IS NOT NULL
        WINDOW newest AS (ORDER BY (k.delivered IS NULL) DESC, k.ordinal DESC)
    ) o WHERE o.n > @most::bigint OR o.total > @most_bytes::bigint);

-- name: ToolCall :one
SELECT sqlc.embed(c), t.uid, t.namespace, t.name
FROM tool_calls c JOIN tasks t ON t.id = c.task_id
WHERE c.id = @id AND t.uid = @task_uid;

-- name: PendingToolCalls :many
SELECT sqlc.embed(c), t.uid, t.namespace, t.name
FROM tool_calls c JOIN tasks t ON t.id = c.task_id
WHERE c.answered IS NULL AND c.ordinal > @after::bigint
ORDER BY c.ordinal LIMIT @up_to_rows;

-- name: NoteToolCall :execrows
UPDATE tool_calls SET noted = @noted WHERE id = @id AND answered IS NULL;

-- name: AnswerToolCall :one
UPDATE tool_calls c
SET answered = now(), refused = @refused, answer = @answer, data = @data, arguments = ''
FROM tasks t
WHERE c.id = @id AND c.answered IS NULL AND t.id = c.task_id
RETURNING t.id, t.uid, t.namespace, t.name;

-- name: KnowsToolCall :one
SELECT EXISTS (SELECT FROM tool_calls WHERE id = @id);

-- name: DeleteToolCalls :exec
DELETE FROM tool_calls WHERE task_id = @task_id;

-- name: NotifyToolCall :exec
SELECT pg_notify('clew_tool_calls', @payload::text);
