-- name: EnrollVerifications :execrows
-- Tasks with durable checkpoints whose verification was never scheduled.
INSERT INTO verifications (task_id, namespace, due, begun, changed)
SELECT t.id, t.namespace, now(), 'epoch', now() FROM tasks t
WHERE NOT EXISTS (SELECT FROM verifications v WHERE v.task_id = t.id)
    AND EXISTS (SELECT FROM checkpoints c WHERE c.task_id = t.id AND c.durable)
LIMIT @up_to_rows
ON CONFLICT (task_id) DO NOTHING;

-- name: NameVerifications :exec
-- Servers of earlier versions do not say whose a verification is.
UPDATE verifications v SET namespace = t.namespace FROM tasks t WHERE v.namespace = '' AND t.id = v.task_id;

-- name: ClaimVerification :one
-- Of the first namespace after the given one, by name, that has any and does not rest, the verification that is due
-- for the longest time. It is not due again before the lease ends.
UPDATE verifications
SET due = @until::timestamptz
FROM tasks t
WHERE t.id = verifications.task_id AND verifications.task_id = (
    SELECT v.task_id FROM verifications v
    WHERE v.turn > @after::text AND v.turn <> ALL(@resting::text[]) AND v.due <= now()
    ORDER BY v.turn, v.due LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING verifications.task_id, t.uid, t.namespace, t.name, verifications.turn, verifications.next_number, verifications.begun, verifications.requested,
    verifications.requested_since;

-- name: PostponeVerification :exec
-- One that was hastened meanwhile stays due.
UPDATE verifications SET due = @due WHERE task_id = @task_id AND due > now();

-- name: BeginPass :one
UPDATE verifications SET next_number = 1, begun = now() WHERE task_id = @task_id RETURNING begun;

-- name: CheckpointsToVerify :many
SELECT number FROM checkpoints
WHERE task_id = @task_id AND number >= @from_number::integer AND durable AND NOT lost
ORDER BY number LIMIT @up_to_rows;

-- name: DamagedCheckpoints :many
SELECT number FROM checkpoint_verdicts
WHERE task_id = @task_id AND (damage <> '' OR conversation <> '') ORDER BY verified, number LIMIT @up_to_rows;

-- name: ConversationPlaces :many
-- Where in the conversation the task's checkpoints are, by branch and position.
SELECT number, branch_id, position FROM checkpoints WHERE task_id = @task_id ORDER BY branch_id, position, number;

-- name: Verdict :one
SELECT number, found, damage, conversation FROM checkpoint_verdicts WHERE task_id = @task_id AND number = @number FOR UPDATE;

-- name: SetVerdict :exec
INSERT INTO checkpoint_verdicts (task_id, number, found, verified, damage, conversation)
VALUES (@task_id, @number, now(), now(), @damage, @conversation)
ON CONFLICT (task_id, number) DO UPDATE
SET verified = now(), damage = excluded.damage, conversation = excluded.conversation,
    found = CASE WHEN checkpoint_verdicts.damage = '' AND checkpoint_verdicts.conversation = '' THEN now() ELSE checkpoint_verdicts.found END;

-- name: NewestDamage :one
SELECT coalesce(max(found), 'epoch')::timestamptz AS found FROM checkpoint_verdicts
WHERE task_id = @task_id AND (damage <> '' OR conversation <> '');

-- name: ScheduleVerification :execrows
UPDATE verifications
SET next_number = @next_number, due = @due,
    through = CASE WHEN @done::boolean THEN @through ELSE through END,
    verified = CASE WHEN @done::boolean THEN begun ELSE verified END,
    changed = CASE WHEN @changed::boolean THEN now() ELSE changed END
WHERE task_id = @task_id;

-- name: HastenVerification :execrows
INSERT INTO verifications (task_id, namespace, due, begun, changed)
SELECT t.id, t.namespace, now(), 'epoch', now() FROM tasks t WHERE t.id = @task_id
ON CONFLICT (task_id) DO UPDATE SET due = now(), changed = now();

-- name: RequestVerification :execrows
-- It comes before what else is due in the namespace. If the same is requested already, nothing changes:
-- it may have been put off.
INSERT INTO verifications (task_id, namespace, due, begun, changed, requested, requested_since)
SELECT t.id, t.namespace, 'epoch', 'epoch', now(), @number::integer, @since::timestamptz FROM tasks t WHERE t.id = @task_id
ON CONFLICT (task_id) DO UPDATE SET requested = excluded.requested, requested_since = excluded.requested_since,
    due = CASE WHEN verifications.requested = excluded.requested AND verifications.requested_since = excluded.requested_since
        THEN verifications.due ELSE 'epoch' END;

-- name: EndRequestedVerification :exec
-- The pass over all checkpoints goes on where it was, unless something else was requested meanwhile.
UPDATE verifications
SET answered = @number::integer, answered_since = sqlc.narg('since')::timestamptz, answered_at = now(),
    due = CASE WHEN requested <> @number::integer OR requested_since IS DISTINCT FROM sqlc.narg('since')::timestamptz THEN 'epoch'
        WHEN next_number > 0 THEN now() ELSE @due::timestamptz END,
    requested = CASE WHEN requested = @number::integer AND requested_since IS NOT DISTINCT FROM sqlc.narg('since')::timestamptz THEN 0 ELSE requested END
WHERE task_id = @task_id;

-- name: UnpushedCheckpoints :many
SELECT c.number FROM checkpoints c JOIN tasks t ON t.id = c.task_id
WHERE t.uid = @task_uid AND NOT c.durable AND NOT c.lost ORDER BY c.number LIMIT @up_to_rows;

-- name: DamagedObjects :many
-- Checkpoints whose objects are damaged, and which the task's volume may heal.
SELECT c.number FROM checkpoint_verdicts d
JOIN tasks t ON t.id = d.task_id
JOIN checkpoints c ON c.task_id = d.task_id AND c.number = d.number
WHERE t.uid = @task_uid AND d.damage <> '' AND NOT c.lost ORDER BY c.number LIMIT @up_to_rows;

-- name: AnnounceVerdicts :execrows
-- Whoever follows what was verified reads the task's verdicts again.
INSERT INTO verifications (task_id, namespace, due, begun, changed)
SELECT t.id, t.namespace, now(), 'epoch', now() FROM tasks t WHERE t.id = @task_id
ON CONFLICT (task_id) DO UPDATE SET changed = now();

-- name: VerificationThrough :one
SELECT through FROM verifications WHERE task_id = @task_id;

-- name: Integrity :one
SELECT (c.durable AND NOT c.lost)::boolean AS durable,
    (coalesce(v.through, 0) >= c.number)::boolean AS passed, v.verified,
    d.verified AS checked, d.found,
    coalesce(CASE WHEN v.requested = c.number THEN v.requested_since END, 'epoch')::timestamptz AS pending_since,
    coalesce(CASE WHEN v.answered = c.number THEN v.answered_since END, 'epoch')::timestamptz AS answered_since,
    coalesce(extract(epoch FROM now() - v.answered_at), 0)::float8 AS answered_age,
    coalesce(d.damage, '')::text AS damage, coalesce(d.conversation, '')::text AS conversation
FROM checkpoints c
JOIN tasks t ON t.id = c.task_id
LEFT JOIN verifications v ON v.task_id = c.task_id
LEFT JOIN checkpoint_verdicts d ON d.task_id = c.task_id AND d.number = c.number
WHERE t.uid = @task_uid AND c.number = @number::integer;

-- name: IntactBefore :one
-- The nearest earlier checkpoint that is not known to be damaged.
SELECT c.number FROM checkpoints c JOIN tasks t ON t.id = c.task_id
WHERE t.uid = @task_uid AND c.number < @number::integer AND c.durable AND NOT c.lost
    AND NOT EXISTS (
        SELECT FROM checkpoint_verdicts d
        WHERE d.task_id = c.task_id AND d.number = c.number AND (d.damage <> '' OR d.conversation <> ''))
ORDER BY c.number DESC LIMIT 1;

-- name: VerificationChanges :many
SELECT v.task_id, t.uid, t.namespace, t.name, v.through, v.changed,
    coalesce((SELECT array_agg(d.number ORDER BY d.number) FROM checkpoint_verdicts d
        WHERE d.task_id = v.task_id AND (d.damage <> '' OR d.conversation <> '')), '{}')::integer[] AS damaged,
    coalesce((SELECT array_agg(d.number ORDER BY d.number) FROM checkpoint_verdicts d
        WHERE d.task_id = v.task_id AND d.damage = '' AND d.conversation = ''), '{}')::integer[] AS intact
FROM verifications v JOIN tasks t ON t.id = v.task_id
WHERE (v.changed, v.task_id) > (@after_changed::timestamptz, @after_task::integer)
ORDER BY v.changed, v.task_id LIMIT @up_to_rows;
