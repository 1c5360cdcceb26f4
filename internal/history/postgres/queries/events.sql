-- name: LockTimeline :exec
-- Events of a task are recorded once, and those of its checkpoints by one party:
-- writers take turns. Imports choose their UIDs, and must not be able to pick one that
-- locks the timeline of another task.
SELECT pg_advisory_xact_lock(('x' || left(encode(sha256(convert_to(@task_uid::text, 'UTF8')), 'hex'), 16))::bit(64)::bigint);

-- name: InsertEvents :one
-- An event is stored once, whatever its time; the creation of a checkpoint is
-- represented by the checkpoint's own row. Returned is how many were stored, and the length of their
-- texts. Who follows timelines is told of each when the transaction commits, apart from those that are
-- imported: they are no news.
WITH stored AS (
INSERT INTO events (id, namespace, task_uid, task_name, time, type, reason, actor, message, attempt, checkpoint, details, imported_by, imported_id)
SELECT n.id, n.namespace, n.task_uid, n.task_name, n.time, n.type, n.reason, n.actor, n.message, n.attempt, n.checkpoint, n.details,
    @imported_by::text, n.imported_id
FROM (
    SELECT unnest(@id::text[]) AS id, unnest(@namespace::text[]) AS namespace, unnest(@task_uid::text[]) AS task_uid,
        unnest(@task_name::text[]) AS task_name, unnest(@time::timestamptz[]) AS time, unnest(@type::text[]) AS type,
        unnest(@reason::text[]) AS reason, unnest(@actor::text[]) AS actor, unnest(@message::text[]) AS message,
        unnest(@attempt::bigint[]) AS attempt, unnest(@checkpoint::bigint[]) AS checkpoint, unnest(@details::jsonb[]) AS details,
        unnest(@imported_id::text[]) AS imported_id
) n
WHERE NOT EXISTS (SELECT FROM events e WHERE e.id = n.id COLLATE "C" AND e.namespace = n.namespace)
    AND NOT (n.reason = 'CheckpointCreated' AND n.checkpoint > 0 AND (
        EXISTS (SELECT FROM events e WHERE e.task_uid = n.task_uid AND e.checkpoint = n.checkpoint
            AND e.reason = 'CheckpointCreated' AND e.checkpoint > 0)
        OR EXISTS (SELECT FROM checkpoints c JOIN tasks t ON t.id = c.task_id
            WHERE t.uid = n.task_uid AND c.number = n.checkpoint)))
ON CONFLICT DO NOTHING
RETURNING id, namespace, task_uid, reason, actor, message, details, events.imported_by
)
SELECT count(*)::bigint AS events,
    coalesce(sum(octet_length(reason) + octet_length(actor) + octet_length(message) + octet_length(details::text)), 0)::bigint AS bytes,
    (count(pg_notify('clew_timeline', concat_ws(' ', namespace, task_uid, id))) FILTER (WHERE stored.imported_by = ''))::bigint AS told
FROM stored;

-- name: NotifyTimeline :exec
SELECT pg_notify('clew_timeline', @payload::text);

-- name: EventsKnown :many
SELECT id, time, reason FROM events WHERE id = ANY (@ids::text[]);

-- name: DeleteToldCalls :exec
-- What an agent's daemon has told of calls gives way to what the manager tells of them: whoever has a
-- daemon's token can tell anything.
DELETE FROM events
WHERE id = ANY (@ids::text[]) AND task_uid = @task_uid AND namespace = @namespace AND reason = 'ToolCalled' AND actor = 'agent';

-- name: NoteTransitions :exec
-- Counts transitions from the first one that follows what is recorded: transitions that
-- an older copy of this store lacks must not be hidden by later ones. Nothing is noted of a
-- task whose history was deleted.
INSERT INTO recorded_transitions AS r (task_uid, sequence, active_seconds)
SELECT @task_uid, CASE WHEN @first::bigint <= 1 THEN @through::bigint ELSE 0 END, @active_seconds
WHERE NOT EXISTS (SELECT FROM deleted_tasks d WHERE d.uid = @task_uid AND d.namespace IN (@namespace, ''))
ON CONFLICT (task_uid) DO UPDATE SET sequence = CASE
    WHEN @first::bigint <= r.sequence + 1 THEN greatest(r.sequence, @through::bigint)
    ELSE r.sequence
END, active_seconds = greatest(r.active_seconds, excluded.active_seconds);

-- name: RecordedTransitions :one
-- If the task's history was deleted, nothing is missing. Imports choose their UIDs:
-- what another namespace has imported and deleted says nothing about the task.
SELECT CASE
    WHEN EXISTS (SELECT FROM deleted_tasks d WHERE d.uid = @task_uid AND d.namespace IN (@namespace, '')) THEN 9223372036854775807
    ELSE coalesce((SELECT r.sequence FROM recorded_transitions r WHERE r.task_uid = @task_uid), 0)
END::bigint;

-- name: DeleteTransitions :exec
-- Imports choose their UIDs: the deletion of one leaves alone what is known of another
-- namespace's task.
DELETE FROM recorded_transitions r WHERE r.task_uid = @task_uid
    AND NOT EXISTS (SELECT FROM events e WHERE e.task_uid = @task_uid AND e.namespace <> @namespace);

-- name: ForgetCheckpointEvents :exec
-- The checkpoints now have rows of their own.
DELETE FROM events
WHERE task_uid = @task_uid AND reason = 'CheckpointCreated' AND checkpoint > 0 AND checkpoint = ANY (@numbers::bigint[]);

-- name: NamespaceTimeline :many
-- Events, checkpoints as events, and the files that changed up to a checkpoint as one
-- event. The ids of the latter two are derived from the checkpoint's key, so that the files always
-- follow the checkpoint, whose time they share. Of the files, only the first
-- ones are read.
SELECT told.* FROM (
    (SELECT e.id, e.namespace, e.task_uid, e.task_name, e.time, e.type, e.reason, e.actor, e.message, e.attempt, e.checkpoint,
        ''::text AS trigger, 0::integer AS files_changed, 0::bigint AS lines_added, 0::bigint AS lines_removed, e.imported_by, ''::text AS changes
    FROM events e
    WHERE e.namespace = @namespace
        AND (e.time, e.id) < (@before_time::timestamptz, @before_id::text)
        AND e.time >= @since::timestamptz
        AND (cardinality(@types::text[]) = 0 OR e.type = ANY (@types::text[]))
    ORDER BY e.time DESC, e.id DESC
    LIMIT @up_to_rows)
    UNION ALL
    (SELECT md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text COLLATE "C", c.namespace, t.uid, t.name, c.time,
        'checkpoint', 'CheckpointCreated', 'clew', coalesce(c.message, ''), c.attempt, c.number,
        c.trigger, coalesce(c.files_changed, 0), coalesce(c.lines_added, 0), coalesce(c.lines_removed, 0), ''::text, ''::text
    FROM checkpoints c JOIN tasks t ON t.id = c.task_id
    WHERE c.namespace = @namespace
        AND c.time <= @before_time::timestamptz AND c.time >= @since::timestamptz
        AND (c.time, md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text COLLATE "C") < (@before_time::timestamptz, @before_id::text)
        AND (cardinality(@types::text[]) = 0 OR 'checkpoint' = ANY (@types::text[]))
    ORDER BY c.time DESC, md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text COLLATE "C" DESC
    LIMIT @up_to_rows)
    UNION ALL
    (SELECT (md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text || '-files') COLLATE "C", c.namespace, t.uid, t.name, c.time,
        'file', 'FilesChanged', 'agent', '', c.attempt, c.number,
        '', c.files_changed, coalesce(c.lines_added, 0), coalesce(c.lines_removed, 0), ''::text,
        coalesce((SELECT json_agg(f.pair)::text FROM (SELECT json_array_elements(c.changes::json) AS pair LIMIT 3) f), '')
    FROM checkpoints c JOIN tasks t ON t.id = c.task_id
    WHERE c.namespace = @namespace
        AND c.files_changed > 0
        AND c.time <= @before_time::timestamptz AND c.time >= @since::timestamptz
        AND (c.time, (md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text || '-files') COLLATE "C") < (@before_time::timestamptz, @before_id::text)
        AND (cardinality(@types::text[]) = 0 OR 'file' = ANY (@types::text[]))
    ORDER BY c.time DESC, (md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text || '-files') COLLATE "C" DESC
    LIMIT @up_to_rows)
) told
ORDER BY told.time DESC, told.id DESC
LIMIT @up_to_rows;

-- name: TaskTimeline :many
SELECT told.* FROM (
    (SELECT e.id, e.namespace, e.task_uid, e.task_name, e.time, e.type, e.reason, e.actor, e.message, e.attempt, e.checkpoint,
        ''::text AS trigger, 0::integer AS files_changed, 0::bigint AS lines_added, 0::bigint AS lines_removed, e.imported_by, ''::text AS changes
    FROM events e
    WHERE e.task_uid = @task_uid AND e.namespace = @namespace
        AND (e.time, e.id) < (@before_time::timestamptz, @before_id::text)
        AND e.time >= @since::timestamptz
        AND (cardinality(@types::text[]) = 0 OR e.type = ANY (@types::text[]))
    ORDER BY e.time DESC, e.id DESC
    LIMIT @up_to_rows)
    UNION ALL
    (SELECT md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text COLLATE "C", c.namespace, t.uid, t.name, c.time,
        'checkpoint', 'CheckpointCreated', 'clew', coalesce(c.message, ''), c.attempt, c.number,
        c.trigger, coalesce(c.files_changed, 0), coalesce(c.lines_added, 0), coalesce(c.lines_removed, 0), ''::text, ''::text
    FROM tasks t JOIN checkpoints c ON c.task_id = t.id
    WHERE t.uid = @task_uid AND t.namespace = @namespace
        AND c.time <= @before_time::timestamptz AND c.time >= @since::timestamptz
        AND (c.time, md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text COLLATE "C") < (@before_time::timestamptz, @before_id::text)
        AND (cardinality(@types::text[]) = 0 OR 'checkpoint' = ANY (@types::text[]))
    ORDER BY c.time DESC, md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text COLLATE "C" DESC
    LIMIT @up_to_rows)
    UNION ALL
    (SELECT (md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text || '-files') COLLATE "C", c.namespace, t.uid, t.name, c.time,
        'file', 'FilesChanged', 'agent', '', c.attempt, c.number,
        '', c.files_changed, coalesce(c.lines_added, 0), coalesce(c.lines_removed, 0), ''::text,
        coalesce((SELECT json_agg(f.pair)::text FROM (SELECT json_array_elements(c.changes::json) AS pair LIMIT 3) f), '')
    FROM tasks t JOIN checkpoints c ON c.task_id = t.id
    WHERE t.uid = @task_uid AND t.namespace = @namespace
        AND c.files_changed > 0
        AND c.time <= @before_time::timestamptz AND c.time >= @since::timestamptz
        AND (c.time, (md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text || '-files') COLLATE "C") < (@before_time::timestamptz, @before_id::text)
        AND (cardinality(@types::text[]) = 0 OR 'file' = ANY (@types::text[]))
    ORDER BY c.time DESC, (md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text || '-files') COLLATE "C" DESC
    LIMIT @up_to_rows)
) told
ORDER BY told.time DESC, told.id DESC
LIMIT @up_to_rows;

-- name: ContractTimeline :many
-- Like TaskTimeline, for each of the tasks that a contract had, whether or not they have begun. No more rows of any one task are read
-- than the page has.
SELECT told.* FROM task_summaries s CROSS JOIN LATERAL (
    (SELECT e.id, e.namespace, e.task_uid, e.task_name, e.time, e.type, e.reason, e.actor, e.message, e.attempt, e.checkpoint,
        ''::text AS trigger, 0::integer AS files_changed, 0::bigint AS lines_added, 0::bigint AS lines_removed, e.imported_by, ''::text AS changes
    FROM events e
    WHERE e.task_uid = s.uid AND e.namespace = s.namespace
        AND (e.time, e.id) < (@before_time::timestamptz, @before_id::text)
        AND e.time >= @since::timestamptz
        AND (cardinality(@types::text[]) = 0 OR e.type = ANY (@types::text[]))
    ORDER BY e.time DESC, e.id DESC
    LIMIT @up_to_rows)
    UNION ALL
    (SELECT md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text COLLATE "C", c.namespace, t.uid, t.name, c.time,
        'checkpoint', 'CheckpointCreated', 'clew', coalesce(c.message, ''), c.attempt, c.number,
        c.trigger, coalesce(c.files_changed, 0), coalesce(c.lines_added, 0), coalesce(c.lines_removed, 0), ''::text, ''::text
    FROM tasks t JOIN checkpoints c ON c.task_id = t.id
    WHERE t.uid = s.uid AND t.namespace = s.namespace
        AND c.time <= @before_time::timestamptz AND c.time >= @since::timestamptz
        AND (c.time, md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text COLLATE "C") < (@before_time::timestamptz, @before_id::text)
        AND (cardinality(@types::text[]) = 0 OR 'checkpoint' = ANY (@types::text[]))
    ORDER BY c.time DESC, md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text COLLATE "C" DESC
    LIMIT @up_to_rows)
    UNION ALL
    (SELECT (md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text || '-files') COLLATE "C", c.namespace, t.uid, t.name, c.time,
        'file', 'FilesChanged', 'agent', '', c.attempt, c.number,
        '', c.files_changed, coalesce(c.lines_added, 0), coalesce(c.lines_removed, 0), ''::text,
        coalesce((SELECT json_agg(f.pair)::text FROM (SELECT json_array_elements(c.changes::json) AS pair LIMIT 3) f), '')
    FROM tasks t JOIN checkpoints c ON c.task_id = t.id
    WHERE t.uid = s.uid AND t.namespace = s.namespace
        AND c.files_changed > 0
        AND c.time <= @before_time::timestamptz AND c.time >= @since::timestamptz
        AND (c.time, (md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text || '-files') COLLATE "C") < (@before_time::timestamptz, @before_id::text)
        AND (cardinality(@types::text[]) = 0 OR 'file' = ANY (@types::text[]))
    ORDER BY c.time DESC, (md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text || '-files') COLLATE "C" DESC
    LIMIT @up_to_rows)
) told
WHERE s.namespace = @namespace AND s.contract = @contract AND s.contract <> ''
ORDER BY told.time DESC, told.id DESC
LIMIT @up_to_rows;

-- name: TimelineEntries :many
-- Entries of a namespace's timeline, oldest first: events by their ids, and those of checkpoints, with their
-- files, by task and number. With a contract, only those of its tasks.
SELECT told.* FROM (
    SELECT e.id, e.namespace, e.task_uid, e.task_name, e.time, e.type, e.reason, e.actor, e.message, e.attempt, e.checkpoint,
        ''::text AS trigger, 0::integer AS files_changed, 0::bigint AS lines_added, 0::bigint AS lines_removed, e.imported_by, ''::text AS changes
    FROM events e
    WHERE e.id = ANY (@ids::text[]) AND e.namespace = @namespace
    UNION ALL
    SELECT md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text COLLATE "C", c.namespace, t.uid, t.name, c.time,
        'checkpoint', 'CheckpointCreated', 'clew', coalesce(c.message, ''), c.attempt, c.number,
        c.trigger, coalesce(c.files_changed, 0), coalesce(c.lines_added, 0), coalesce(c.lines_removed, 0), ''::text, ''::text
    FROM (SELECT unnest(@task_uids::text[]) AS uid, unnest(@numbers::bigint[]) AS number) n
        JOIN tasks t ON t.uid = n.uid JOIN checkpoints c ON c.task_id = t.id AND c.number = n.number
    WHERE t.namespace = @namespace
    UNION ALL
    SELECT (md5('checkpoint/' || t.uid || '/' || c.number)::uuid::text || '-files') COLLATE "C", c.namespace, t.uid, t.name, c.time,
        'file', 'FilesChanged', 'agent', '', c.attempt, c.number,
        '', c.files_changed, coalesce(c.lines_added, 0), coalesce(c.lines_removed, 0), ''::text,
        coalesce((SELECT json_agg(f.pair)::text FROM (SELECT json_array_elements(c.changes::json) AS pair LIMIT 3) f), '')
    FROM (SELECT unnest(@task_uids::text[]) AS uid, unnest(@numbers::bigint[]) AS number) n
        JOIN tasks t ON t.uid = n.uid JOIN checkpoints c ON c.task_id = t.id AND c.number = n.number
    WHERE t.namespace = @namespace AND c.files_changed > 0
) told
WHERE (cardinality(@types::text[]) = 0 OR told.type = ANY (@types::text[]))
    AND (@name::text = '' OR told.task_name = @name::text)
    AND (@contract::text = '' OR EXISTS (
        SELECT FROM task_summaries s WHERE s.uid = told.task_uid AND s.namespace = @namespace AND s.contract = @contract::text))
ORDER BY told.time, told.id;

-- name: NewestEventTaskNamed :one
-- The newest task of a name that has an event, for tasks that never began.
SELECT task_uid FROM events
WHERE namespace = @namespace AND task_name = @name
ORDER BY time DESC
LIMIT 1;
