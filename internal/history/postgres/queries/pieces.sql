-- name: InsertPieces :many
-- Returns the pieces that were new.
INSERT INTO pieces (namespace, hash, data)
SELECT @namespace::text, unnest(@hash::bytea[]), unnest(@data::bytea[])
ON CONFLICT (namespace, hash) DO NOTHING
RETURNING id, hash;

-- name: HoldPieces :many
-- Keeps the pieces from being removed until the transaction ends. Those of keys that have joined
-- the namespace are among its own.
SELECT id, hash FROM pieces WHERE namespace = ANY (ARRAY[@namespace::text] || ARRAY (SELECT unnest(n.joined) FROM namespaces n WHERE n.key = @namespace::text)) AND hash = ANY (@hashes::bytea[]) ORDER BY hash FOR KEY SHARE;

-- name: AwaitPieces :exec
-- The pieces' message is still to come.
INSERT INTO pending_pieces (task_id, piece_id) SELECT @task_id::integer, unnest(@piece_id::bigint[])
ON CONFLICT DO NOTHING;

-- name: LinkPieces :exec
-- From now on the messages refer to the pieces.
WITH links AS (
    SELECT unnest(@message_id::bigint[]) AS message_id, unnest(@piece_id::bigint[]) AS piece_id
), linked AS (
    INSERT INTO message_pieces (message_id, piece_id) SELECT message_id, piece_id FROM links ON CONFLICT DO NOTHING
)
DELETE FROM pending_pieces p USING links WHERE p.task_id = @task_id::integer AND p.piece_id = links.piece_id;

-- name: Pieces :many
SELECT hash, data FROM pieces WHERE namespace = ANY (ARRAY[@namespace::text] || ARRAY (SELECT unnest(n.joined) FROM namespaces n WHERE n.key = @namespace::text)) AND hash = ANY (@hashes::bytea[]);

-- name: IntactPieces :one
-- The number of the pieces that exist and match their hash.
SELECT count(DISTINCT hash) FROM pieces WHERE namespace = ANY (ARRAY[@namespace::text] || ARRAY (SELECT unnest(n.joined) FROM namespaces n WHERE n.key = @namespace::text)) AND hash = ANY (@hashes::bytea[]) AND sha256(data) = hash;

-- name: MarkMessages :exec
-- An existing mark may be about to be removed by a sweep that saw the message in use:
-- the update waits for that sweep and then marks the message again. All statements that
-- mark do this.
INSERT INTO sweep_messages (message_id) SELECT DISTINCT id FROM unnest(@ids::bigint[]) AS id ORDER BY id
ON CONFLICT (message_id) DO UPDATE SET message_id = EXCLUDED.message_id;

-- name: MarkedMessages :many
SELECT message_id FROM sweep_messages ORDER BY message_id LIMIT @up_to_rows FOR UPDATE SKIP LOCKED;

-- name: MarkedAmong :one
SELECT count(*) FROM sweep_messages WHERE message_id = ANY (@ids::bigint[]);

-- name: LockMessages :many
-- A message that a writer currently holds is in use.
SELECT id FROM messages WHERE id = ANY (@ids::bigint[]) ORDER BY id FOR UPDATE SKIP LOCKED;

-- name: UnusedMessages :many
-- Must be a separate statement after LockMessages, so that it sees what writers have
-- committed until then.
SELECT id FROM messages m WHERE id = ANY (@ids::bigint[]) AND NOT EXISTS (SELECT FROM entries e WHERE e.message_id = m.id);

-- name: ExistingMessages :many
SELECT id FROM messages WHERE id = ANY (@ids::bigint[]);

-- name: DeleteMessages :execrows
WITH pieces_of AS (
    INSERT INTO sweep_pieces (piece_id)
    SELECT DISTINCT piece_id FROM message_pieces WHERE message_id = ANY (@ids::bigint[]) ORDER BY piece_id
    ON CONFLICT (piece_id) DO UPDATE SET piece_id = EXCLUDED.piece_id
)
DELETE FROM messages WHERE id = ANY (@ids::bigint[]);

-- name: UnmarkMessages :exec
DELETE FROM sweep_messages WHERE message_id = ANY (@ids::bigint[]);

-- name: MarkedPieces :many
SELECT piece_id FROM sweep_pieces ORDER BY piece_id LIMIT @up_to_rows FOR UPDATE SKIP LOCKED;

-- name: LockPieces :many
SELECT id FROM pieces WHERE id = ANY (@ids::bigint[]) ORDER BY id FOR UPDATE SKIP LOCKED;

-- name: ExistingPieces :many
SELECT id FROM pieces WHERE id = ANY (@ids::bigint[]);

-- name: DeleteUnusedPieces :execrows
-- Must be a separate statement after LockPieces.
DELETE FROM pieces p WHERE id = ANY (@ids::bigint[])
    AND NOT EXISTS (SELECT FROM message_pieces m WHERE m.piece_id = p.id)
    AND NOT EXISTS (SELECT FROM pending_pieces w WHERE w.piece_id = p.id);

-- name: UnmarkPieces :exec
DELETE FROM sweep_pieces WHERE piece_id = ANY (@ids::bigint[]);

-- name: GiveUpPieces :execrows
-- Pieces whose message never arrived.
WITH late AS (
    SELECT p.task_id, p.piece_id FROM pending_pieces p WHERE p.created_at < @before::timestamptz ORDER BY p.created_at LIMIT @up_to_rows
), gone AS (
    DELETE FROM pending_pieces USING late
    WHERE pending_pieces.task_id = late.task_id AND pending_pieces.piece_id = late.piece_id
    RETURNING pending_pieces.piece_id
)
INSERT INTO sweep_pieces (piece_id) SELECT DISTINCT piece_id FROM gone ORDER BY piece_id
ON CONFLICT (piece_id) DO UPDATE SET piece_id = EXCLUDED.piece_id;
