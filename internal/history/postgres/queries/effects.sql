-- name: ToolCallsByID :many
-- Those that are answered and were not refused, with what is known of what they did.
SELECT id, tool, data FROM tool_calls
WHERE task_id = @task_id AND id = ANY (@ids::text[]) AND answered IS NOT NULL AND NOT refused AND data IS NOT NULL;

-- name: InsertCallEffects :exec
INSERT INTO call_effects (branch_id, position, checkpoint, tool, task_uid, task_name, phase)
SELECT @branch_id, unnest(@position::bigint[]), unnest(@checkpoint::bigint[]), unnest(@tool::text[]), unnest(@task_uid::text[]),
    unnest(@task_name::text[]), unnest(@phase::text[]);

-- name: CallEffects :many
-- What the calls did whose messages a branch has after one position and up to another, and the last
-- state of each task that they were about. The first recursion is that of Conversation; the second one
-- runs over the active branch, on which a call is that no rewind took back. A call is repeated if an
-- earlier one has made the same task: its name was the task's already. Imports choose their UIDs: only a
-- task of the same namespace has made it.
WITH RECURSIVE chain AS (
    SELECT b.id, b.parent_id, b.base_position AS low, @upto::bigint AS high
    FROM branches b WHERE b.id = @branch_id
    UNION ALL
    SELECT p.id, p.parent_id, p.base_position, least(c.high, c.low)
    FROM chain c JOIN branches p ON p.id = c.parent_id
    WHERE c.low > @after::bigint
), active AS (
    SELECT b.id, b.parent_id, b.base_position AS low, b.head_position AS high
    FROM branches b WHERE b.id = @active_branch
    UNION ALL
    SELECT p.id, p.parent_id, p.base_position, least(a.high, a.low)
    FROM active a JOIN branches p ON p.id = a.parent_id
    WHERE a.low > @after::bigint
)
SELECT e.position, e.checkpoint, e.tool, e.task_uid, e.task_name, e.phase,
    coalesce(s.state, '')::text AS state,
    (NOT EXISTS (SELECT FROM active a WHERE a.id = c.id AND e.position > a.low AND e.position <= a.high))::boolean AS taken_back,
    (e.tool IN ('task_create', 'task_fork') AND e.task_uid <> '' AND EXISTS (
        SELECT FROM call_effects f JOIN branches fb ON fb.id = f.branch_id JOIN tasks ft ON ft.uid = fb.task_uid
        WHERE f.task_uid = e.task_uid AND f.task_uid <> '' AND f.ordinal < e.ordinal
            AND f.tool IN ('task_create', 'task_fork') AND ft.namespace = @namespace))::boolean AS repeated
FROM chain c
CROSS JOIN LATERAL (
    SELECT * FROM call_effects
    WHERE call_effects.branch_id = c.id
        AND call_effects.position > greatest(c.low, @after::bigint) AND call_effects.position <= c.high
    ORDER BY call_effects.position, call_effects.ordinal
    LIMIT @up_to_rows::bigint
) e
LEFT JOIN task_summaries s ON s.uid = e.task_uid AND s.namespace = @namespace
ORDER BY e.position, e.ordinal
LIMIT @up_to_rows::bigint;

-- name: MadeByCall :one
-- The first call that made a task, where its message is, and whether a rewind took it back. Imports
-- choose their UIDs: only a task of the same namespace has made it.
WITH RECURSIVE made AS (
    SELECT e.branch_id, e.position, e.tool, e.phase, b.number, t.uid, t.name, t.active_branch
    FROM call_effects e JOIN branches b ON b.id = e.branch_id JOIN tasks t ON t.uid = b.task_uid
    WHERE e.task_uid = @task_uid AND e.task_uid <> '' AND e.tool IN ('task_create', 'task_fork') AND t.namespace = @namespace
    ORDER BY e.ordinal LIMIT 1
), active AS (
    SELECT b.id, b.parent_id, b.base_position AS low, b.head_position AS high
    FROM made m JOIN branches b ON b.id = m.active_branch
    UNION ALL
    SELECT p.id, p.parent_id, p.base_position, least(a.high, a.low)
    FROM active a JOIN branches p ON p.id = a.parent_id
)
SELECT m.position, m.tool, m.phase, m.number, m.uid, m.name,
    (NOT EXISTS (SELECT FROM active a WHERE a.id = m.branch_id AND m.position > a.low AND m.position <= a.high))::boolean AS taken_back
FROM made m;

-- name: MoveCallEffects :exec
UPDATE call_effects SET task_uid = @uid::text WHERE call_effects.task_uid = @former_uid::text AND call_effects.task_uid <> '';

-- name: DeleteCallEffects :exec
DELETE FROM call_effects WHERE branch_id IN (SELECT b.id FROM branches b WHERE b.task_uid = @uid::text);
