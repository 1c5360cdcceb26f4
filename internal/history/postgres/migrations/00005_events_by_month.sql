-- +goose Up

-- The timeline, by month, so that old events are removed by dropping a table. Tasks that
-- never had a pod have events too, so there is no reference to tasks. Checkpoints appear
-- through their own rows; an event exists for a while only if a transition comes before
-- the checkpoint's record.
ALTER TABLE events RENAME TO old_events;
ALTER INDEX events_pkey RENAME TO old_events_pkey;
ALTER INDEX events_by_namespace RENAME TO old_events_by_namespace;
ALTER INDEX events_by_task RENAME TO old_events_by_task;
ALTER INDEX events_by_task_name RENAME TO old_events_by_task_name;
DROP INDEX events_of_checkpoints;

CREATE TABLE events (
    id         text COLLATE "C" NOT NULL,
    namespace  text NOT NULL,
    task_uid   text NOT NULL,
    task_name  text NOT NULL,
    time       timestamptz NOT NULL,
    type       text NOT NULL,
    reason     text NOT NULL,
    actor      text NOT NULL,
    message    text NOT NULL,
    attempt    bigint NOT NULL,
    checkpoint bigint NOT NULL,
    details    jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (id, time)
) PARTITION BY RANGE (time);
CREATE INDEX events_by_namespace ON events (namespace, time DESC, id DESC);
CREATE INDEX events_by_task ON events (task_uid, time DESC, id DESC);
CREATE INDEX events_by_task_name ON events (namespace, task_name, time DESC);
CREATE INDEX events_of_checkpoints ON events (task_uid, checkpoint)
    WHERE reason = 'CheckpointCreated' AND checkpoint > 0;

-- Events of months without a table.
CREATE TABLE events_default PARTITION OF events DEFAULT;

-- +goose StatementBegin
-- The months of the last two years, as far back as there are events; older events go into
-- the default table, and maintenance creates the coming months.
DO $$
DECLARE
    month timestamptz;
    last timestamptz := date_trunc('month', now(), 'UTC');
BEGIN
    SELECT greatest(date_trunc('month', least(min(time), now()), 'UTC'), last - interval '24 months')
    INTO month FROM old_events;
    month := coalesce(month, date_trunc('month', now(), 'UTC'));
    WHILE month <= last LOOP
        EXECUTE format('CREATE TABLE %I PARTITION OF events FOR VALUES FROM (%L) TO (%L)',
            to_char(month AT TIME ZONE 'UTC', '"events_"YYYY_MM'), month, month + interval '1 month');
        month := month + interval '1 month';
    END LOOP;
END $$;
-- +goose StatementEnd

INSERT INTO events SELECT * FROM old_events o
WHERE NOT (o.reason = 'CheckpointCreated' AND o.checkpoint > 0 AND EXISTS (
    SELECT FROM checkpoints c JOIN tasks t ON t.id = c.task_id
    WHERE t.uid = o.task_uid AND c.number = o.checkpoint));
DROP TABLE old_events;
