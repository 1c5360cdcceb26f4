-- name: InsertBranch :one
-- Returns no row if the task has reached the limit of branches.
INSERT INTO branches (
    task_uid, number, parent_id, reason,
    base_position, base_tool_calls, base_input_tokens, base_output_tokens, base_cost_micro_usd,
    head_position, head_tool_calls, head_input_tokens, head_output_tokens, head_cost_micro_usd,
    head_boundary, head_settled, base_digest, head_digest
) SELECT
    @task_uid::text, coalesce(max(number), 0) + 1, sqlc.narg('parent_id')::bigint, @reason::text,
    @base_position::bigint, @base_tool_calls::bigint, @base_input_tokens::bigint, @base_output_tokens::bigint, @base_cost_micro_usd::bigint,
    @base_position::bigint, @base_tool_calls::bigint, @base_input_tokens::bigint, @base_output_tokens::bigint, @base_cost_micro_usd::bigint,
    @base_position::bigint, @base_position::bigint, @base_digest::bytea, @base_digest::bytea
FROM branches WHERE task_uid = @task_uid::text
HAVING coalesce(max(number), 0) < @most::bigint
RETURNING *;

-- name: SetBranchHead :exec
UPDATE branches
SET head_position = @head_position, head_tool_calls = @head_tool_calls,
    head_input_tokens = @head_input_tokens, head_output_tokens = @head_output_tokens,
    head_cost_micro_usd = @head_cost_micro_usd, head_boundary = @head_boundary,
    head_settled = @head_settled, head_open_calls = @head_open_calls, head_digest = @head_digest
WHERE id = @id;

-- name: Branch :one
SELECT * FROM branches WHERE id = @id;

-- name: BranchByNumber :one
SELECT * FROM branches WHERE task_uid = @task_uid::text AND number = @number;

-- name: InsertMessages :many
-- Returns the messages that were new; they are queued for indexing.
WITH fresh AS (
    INSERT INTO messages (
        namespace, hash, role, body, raw, has_call, tool_name, tool_input,
        has_result, tool_output, is_error, interrupted, cuts
    ) SELECT
        @namespace::text, unnest(@hash::bytea[]), unnest(@role::text[]), unnest(@body::text[]), unnest(@raw::text[]),
        unnest(@has_call::boolean[]), unnest(@tool_name::text[]), unnest(@tool_input::text[]),
        unnest(@has_result::boolean[]), unnest(@tool_output::text[]), unnest(@is_error::boolean[]), unnest(@interrupted::boolean[]),
        unnest(@cuts::text[])
    ON CONFLICT (hash) DO NOTHING
    RETURNING id, hash
), queued AS (
    INSERT INTO search_queue (message_id) SELECT id FROM fresh
)
SELECT id, hash FROM fresh;

-- name: HoldMessages :many
-- Keeps the messages from being removed until the transaction ends.
SELECT id, hash FROM messages WHERE hash = ANY (@hashes::bytea[]) ORDER BY hash FOR KEY SHARE;

-- name: InsertEntries :exec
INSERT INTO entries (
    branch_id, position, message_id, time, sequence, boundary, tool_calls, input_tokens, output_tokens, cost_micro_usd,
    attempt, snapshot, digest, call_id, result_call_id
) SELECT
    @branch_id::bigint, unnest(@position::bigint[]), unnest(@message_id::bigint[]), unnest(@time::timestamptz[]),
    unnest(@sequence::bigint[]), unnest(@boundary::bigint[]), unnest(@tool_calls::bigint[]), unnest(@input_tokens::bigint[]),
    unnest(@output_tokens::bigint[]), unnest(@cost_micro_usd::bigint[]), unnest(@attempt::integer[]), unnest(@snapshot::integer[]),
    unnest(@digest::bytea[]), unnest(@call_id::text[]), unnest(@result_call_id::text[]);

-- name: Entry :one
SELECT * FROM entries WHERE branch_id = @branch_id AND position = @position;

-- name: Conversation :many
-- The messages of a branch after one position and up to another. The recursion runs
-- over the branches that hold them; each message is then read by its primary key.
-- Messages can be large: those beyond the given sum of bytes are left out (their
-- lengths are known without reading them).
WITH RECURSIVE chain AS (
    SELECT b.id, b.task_uid, b.number, b.parent_id, b.base_position AS low, @upto::bigint AS high
    FROM branches b WHERE b.id = @branch_id
    UNION ALL
    SELECT p.id, p.task_uid, p.number, p.parent_id, p.base_position, least(c.high, c.low)
    FROM chain c JOIN branches p ON p.id = c.parent_id
    WHERE c.low > @after::bigint
)
SELECT page.* FROM (
    SELECT coalesce(c.task_uid, '')::text AS task_uid, c.number AS branch_number,
        e.position, e.time, e.attempt, e.call_id, e.result_call_id, e.digest,
        m.role, m.body, m.raw, m.has_call, m.tool_name, m.tool_input,
        m.has_result, m.tool_output, m.is_error, m.interrupted, m.cuts, m.namespace, m.hash,
        coalesce(sum(octet_length(m.body) + octet_length(m.raw) + octet_length(m.tool_input) + octet_length(m.tool_output))
            OVER (ORDER BY e.position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::bigint AS bytes_before
    FROM chain c
    CROSS JOIN LATERAL (
        SELECT * FROM entries
        WHERE entries.branch_id = c.id
            AND entries.position > greatest(c.low, @after::bigint) AND entries.position <= c.high
        ORDER BY entries.position
        LIMIT @up_to_rows::bigint
    ) e
    JOIN messages m ON m.id = e.message_id
) page
WHERE page.bytes_before < @up_to_bytes::bigint
ORDER BY page.position;

-- name: BranchHolding :one
-- The branch that holds a position of another branch: that branch itself, or the
-- ancestor whose own entries include the position.
WITH RECURSIVE chain AS (
    SELECT b.id, b.parent_id, b.base_position AS low FROM branches b WHERE b.id = @branch_id
    UNION ALL
    SELECT p.id, p.parent_id, p.base_position
    FROM chain c JOIN branches p ON p.id = c.parent_id
    WHERE c.low >= @position::bigint
)
SELECT branches.* FROM branches JOIN chain ON chain.id = branches.id
WHERE chain.low < @position::bigint OR chain.parent_id IS NULL
ORDER BY chain.low DESC
LIMIT 1;

-- name: PositionAfter :one
-- The last message of a branch that was made by the task's records up to a sequence,
-- or, where these are lost, the message that reports the gap. 0 if there is none. A
-- task's sequences increase along its branches, and their positions are dense: the
-- recursion ends at the branch whose first message is not past the sequence, and a
-- binary search finds the message there.
WITH RECURSIVE chain AS (
    SELECT b.id, b.parent_id, b.base_position AS low, b.head_position AS high, 0 AS depth
    FROM branches b WHERE b.id = @branch_id AND b.task_uid = @task_uid::text
    UNION ALL
    SELECT p.id, p.parent_id, p.base_position, least(c.high, c.low), c.depth + 1
    FROM chain c JOIN branches p ON p.id = c.parent_id AND p.task_uid = @task_uid::text
    WHERE NOT EXISTS (
        SELECT FROM entries e
        WHERE e.branch_id = c.id AND e.position = c.low + 1 AND e.position <= c.high AND e.sequence <= @sequence::bigint)
), halves AS (
    SELECT c.id, e.position AS low, c.high
    FROM (SELECT * FROM chain ORDER BY depth DESC LIMIT 1) c JOIN entries e ON e.branch_id = c.id AND e.position = c.low + 1
    WHERE e.position <= c.high AND e.sequence <= @sequence::bigint
    UNION ALL
    SELECT h.id,
        CASE WHEN e.sequence <= @sequence::bigint THEN e.position ELSE h.low END,
        CASE WHEN e.sequence <= @sequence::bigint THEN h.high ELSE e.position - 1 END
    FROM halves h JOIN entries e ON e.branch_id = h.id AND e.position = (h.low + h.high + 1) / 2
    WHERE h.low < h.high
)
SELECT coalesce(max(low), 0)::bigint FROM halves;

-- name: FirstOwnMessage :one
-- The first message of a branch that is the task's own, not inherited, and whether the
-- task started over there and said its prompt again: whether the operation that made
-- the branch holding it, the first that names it, led to no checkpoint and no position.
-- A task that inherited its prompt does not say one again; on its first branch the
-- agent spoke first, unless that is lost.
WITH RECURSIVE chain AS (
    SELECT b.id, b.number, b.parent_id, b.base_position AS low, b.head_position AS high, 0 AS depth
    FROM branches b WHERE b.id = @branch_id AND b.task_uid = @task_uid::text
    UNION ALL
    SELECT p.id, p.number, p.parent_id, p.base_position, least(c.high, c.low), c.depth + 1
    FROM chain c JOIN branches p ON p.id = c.parent_id AND p.task_uid = @task_uid::text
)
SELECT e.position, m.role, (c.number > 1 AND coalesce((
    SELECT o.checkpoint = 0 AND o.asked_position = 0
    FROM operations o
    WHERE o.task_uid = @task_uid::text AND o.branch = 'branch-' || c.number AND o.refused = ''
    ORDER BY o.ordinal LIMIT 1
), false) AND coalesce((
    SELECT m.role IN ('user', 'system')
    FROM branches b
    JOIN entries e ON e.branch_id = b.id AND e.position = b.base_position + 1
    JOIN messages m ON m.id = e.message_id
    WHERE b.task_uid = @task_uid::text AND b.number = 1
), true))::boolean AS started_over
FROM chain c
JOIN entries e ON e.branch_id = c.id AND e.position = c.low + 1 AND e.position <= c.high
JOIN messages m ON m.id = e.message_id
ORDER BY c.depth DESC
LIMIT 1;

-- name: PositionAt :one
-- The last message of a branch before the first one with a later time. Messages
-- recorded by a clock that was behind do not count as earlier than those before them.
WITH RECURSIVE chain AS (
    SELECT b.id, b.parent_id, b.base_position AS low, b.head_position AS high
    FROM branches b WHERE b.id = @branch_id
    UNION ALL
    SELECT p.id, p.parent_id, p.base_position, least(c.high, c.low)
    FROM chain c JOIN branches p ON p.id = c.parent_id
)
SELECT coalesce(min(e.position) - 1, (SELECT b.head_position FROM branches b WHERE b.id = @branch_id))::bigint
FROM chain c JOIN entries e ON e.branch_id = c.id AND e.position > c.low AND e.position <= c.high
WHERE e.time > @at::timestamptz;
