-- name: LockDeletions :exec
-- Tasks are deleted one at a time: two that inherit from a third must not each leave to
-- the other what only they inherit.
SELECT pg_advisory_xact_lock(1667593079, 0);

-- name: TaskMessages :many
-- The messages on branches of the task.
SELECT DISTINCT e.message_id FROM branches b JOIN entries e ON e.branch_id = b.id WHERE b.task_uid = @uid::text;

-- name: InheritedBranches :many
-- The branches of the task that branches of other tasks inherit from, each up to the
-- inherited position.
WITH RECURSIVE kept AS (
    SELECT p.id, p.parent_id, p.base_position, c.base_position AS upto
    FROM branches p JOIN branches c ON c.parent_id = p.id
    WHERE p.task_uid = @uid::text AND c.task_uid IS DISTINCT FROM @uid::text
    UNION
    SELECT p.id, p.parent_id, p.base_position, k.base_position
    FROM kept k JOIN branches p ON p.id = k.parent_id
    WHERE p.task_uid = @uid::text
)
SELECT id, max(upto)::bigint AS upto FROM kept GROUP BY id;

-- name: ForsakenBranches :many
-- The remaining branches of deleted tasks that nobody inherits from any more.
SELECT b.id FROM branches b
WHERE b.task_uid IS NULL AND b.id = ANY (@ids::bigint[]) AND NOT EXISTS (SELECT FROM branches c WHERE c.parent_id = b.id);

-- name: NeededBranches :many
-- The positions up to which others inherit the remaining branches of deleted tasks.
SELECT b.id, max(c.base_position)::bigint AS upto
FROM branches b JOIN branches c ON c.parent_id = b.id
WHERE b.task_uid IS NULL AND b.id = ANY (@ids::bigint[])
GROUP BY b.id
HAVING max(c.base_position) < max(b.head_position);

-- name: AncestorBranches :many
-- The remaining branches of deleted tasks that the task's branches inherit from.
WITH RECURSIVE up AS (
    SELECT b.parent_id FROM branches b WHERE b.task_uid = @uid::text AND b.parent_id IS NOT NULL
    UNION
    SELECT p.parent_id FROM up JOIN branches p ON p.id = up.parent_id WHERE p.parent_id IS NOT NULL
)
SELECT b.id FROM up JOIN branches b ON b.id = up.parent_id WHERE b.task_uid IS NULL;

-- name: TrimBranch :exec
-- Keeps the part of a branch that others inherit, and nothing that identifies its task.
WITH trimmed AS (
    UPDATE branches b SET task_uid = NULL, reason = '', head_position = @upto::bigint, head_open_calls = '[]',
        head_boundary = @upto::bigint, head_settled = @upto::bigint,
        head_tool_calls = coalesce(e.tool_calls, b.base_tool_calls),
        head_input_tokens = coalesce(e.input_tokens, b.base_input_tokens),
        head_output_tokens = coalesce(e.output_tokens, b.base_output_tokens),
        head_cost_micro_usd = coalesce(e.cost_micro_usd, b.base_cost_micro_usd),
        head_digest = coalesce(e.digest, b.base_digest)
    FROM branches o LEFT JOIN entries e ON e.branch_id = o.id AND e.position = @upto::bigint
    WHERE b.id = @id::bigint AND o.id = b.id
)
DELETE FROM entries WHERE branch_id = @id::bigint AND position > @upto::bigint;

-- name: ForgetBranchSnapshots :exec
UPDATE entries SET snapshot = 0 WHERE branch_id = @id AND snapshot > 0;

-- name: BranchMessages :many
SELECT DISTINCT message_id FROM entries WHERE branch_id = ANY (@ids::bigint[]);

-- name: DeleteBranches :exec
DELETE FROM branches WHERE id = ANY (@ids::bigint[]);

-- name: TaskBranches :many
SELECT id FROM branches WHERE task_uid = @uid::text;

-- name: MarkPendingPieces :exec
INSERT INTO sweep_pieces (piece_id) SELECT piece_id FROM pending_pieces WHERE task_id = @task_id ORDER BY piece_id
ON CONFLICT (piece_id) DO UPDATE SET piece_id = EXCLUDED.piece_id;

-- name: DeleteCheckpoints :execrows
DELETE FROM checkpoints WHERE task_id = @task_id;

-- name: DeleteVerification :exec
WITH verdicts AS (DELETE FROM checkpoint_verdicts WHERE checkpoint_verdicts.task_id = @task_id)
DELETE FROM verifications WHERE verifications.task_id = @task_id;

-- name: DeleteTask :exec
DELETE FROM tasks WHERE uid = @uid;

-- name: DeleteSummary :execrows
DELETE FROM task_summaries WHERE uid = @uid;

-- name: DeleteEvents :execrows
DELETE FROM events WHERE task_uid = @uid AND namespace = @namespace;

-- name: NewestEvent :one
SELECT namespace, task_name FROM events WHERE task_uid = @uid ORDER BY time DESC LIMIT 1;

-- name: BuryTask :exec
INSERT INTO deleted_tasks (uid, namespace) VALUES (@uid, @namespace) ON CONFLICT DO NOTHING;

-- name: KnowsTask :one
-- Whether a task has a history here, or had one that was adopted or deleted.
SELECT (EXISTS (SELECT FROM tasks t WHERE t.uid = @uid) OR EXISTS (SELECT FROM adoptions a WHERE a.former_uid = @uid)
    OR EXISTS (SELECT FROM deleted_tasks d WHERE d.uid = @uid))::boolean AS known;

-- name: UnburyTask :exec
DELETE FROM deleted_tasks WHERE uid = @uid AND namespace IN (@namespace, '');

-- name: NoteGoneTasks :execrows
-- Tasks whose row is in use are left to the next time. A history is there as well while a former task
-- is: an older copy of the cluster knows nothing of the one that has adopted it.
WITH there AS (
    SELECT l.uid FROM unnest(@live::text[]) AS l (uid)
    UNION
    SELECT a.uid FROM unnest(@live::text[]) AS l (uid) JOIN adoptions a ON a.former_uid = l.uid
), changed AS (
    SELECT t.id, l.uid IS NULL AS gone
    FROM tasks t LEFT JOIN there l ON l.uid = t.uid
    WHERE (t.gone_since IS NULL) = (l.uid IS NULL)
    LIMIT @up_to_rows FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE tasks SET gone_since = CASE WHEN changed.gone THEN now() END FROM changed WHERE tasks.id = changed.id;

-- name: GoneTasks :many
-- Tasks that have been gone, and not written to, for some time, and are not being deleted yet.
SELECT t.id, t.uid, t.namespace, t.name FROM tasks t
WHERE t.deletion_since IS NULL AND t.gone_since < now() - make_interval(secs => @seconds::float) AND t.updated_at < now() - make_interval(secs => @seconds::float)
    AND t.id > @after_id
ORDER BY t.id
LIMIT @up_to_rows;

-- name: ClaimDeletion :exec
-- An older server that gives a history back leaves code_deletion_since as it is.
UPDATE tasks SET deletion_since = coalesce(deletion_since, now()), code_deletion_since = CASE WHEN deletion_since IS NOT NULL THEN code_deletion_since END
WHERE uid = @uid;

-- name: BeginCodeDeletion :exec
UPDATE tasks SET code_deletion_since = coalesce(code_deletion_since, now()) WHERE uid = @uid;

-- name: ReleaseDeletion :execrows
-- Not if the code may be gone.
UPDATE tasks SET deletion_since = NULL WHERE uid = @uid AND code_deletion_since IS NULL;

-- name: ClaimedDeletions :many
SELECT t.id, t.uid, t.namespace, t.name FROM tasks t
WHERE t.deletion_since IS NOT NULL AND t.id > @after_id
ORDER BY t.id
LIMIT @up_to_rows;
