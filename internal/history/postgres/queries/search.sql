-- name: WaitingMessages :many
-- The caller holds the messages it takes from the queue until the transaction ends.
SELECT message_id FROM search_queue WHERE error IS NULL ORDER BY message_id LIMIT @up_to_rows FOR UPDATE SKIP LOCKED;

-- name: MessagesToIndex :many
SELECT id, namespace, role, body, raw, tool_name, tool_input, tool_output, has_call, has_result, cuts
FROM messages WHERE id = ANY (@ids::bigint[]);

-- name: IndexMessages :exec
INSERT INTO search_documents (message_id, words)
SELECT n.id, to_tsvector('simple', n.words) || array_to_tsvector(ARRAY[n.namespace])
FROM (
    SELECT unnest(@ids::bigint[]) AS id, unnest(@words::text[]) AS words, unnest(@namespaces::text[]) AS namespace
) n
ON CONFLICT (message_id) DO UPDATE SET words = excluded.words;

-- name: LeaveQueue :exec
DELETE FROM search_queue WHERE message_id = ANY (@ids::bigint[]);

-- name: MarkUnindexed :exec
UPDATE search_queue SET error = @error::text WHERE message_id = @id;

-- name: IndexLag :one
-- The number of waiting messages, the number that could not be indexed, and for how
-- many seconds the first waiting one has waited.
SELECT count(*) FILTER (WHERE error IS NULL) AS waiting, count(*) FILTER (WHERE error IS NOT NULL) AS failed,
    coalesce(extract(epoch FROM now() - min(queued_at) FILTER (WHERE error IS NULL)), 0)::float8 AS seconds
FROM search_queue;
