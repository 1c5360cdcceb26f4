-- +goose Up

-- Imported events: who imported them, and the id that they were exported with. They get
-- ids of their own, so that no import can take the place of a future event.
ALTER TABLE events
    ADD COLUMN imported_by text NOT NULL DEFAULT '',
    ADD COLUMN imported_id text COLLATE "C" NOT NULL DEFAULT '';

-- The namespace of deleted tasks: an import into one namespace must not bring back what
-- was deleted in another. Empty if unknown.
ALTER TABLE deleted_tasks ADD COLUMN namespace text NOT NULL DEFAULT '';
UPDATE deleted_tasks d SET namespace = coalesce(
    (SELECT e.namespace FROM events e WHERE e.task_uid = d.uid AND e.reason = 'HistoryDeleted' ORDER BY e.time DESC LIMIT 1), '');
ALTER TABLE deleted_tasks DROP CONSTRAINT deleted_tasks_pkey;
ALTER TABLE deleted_tasks ADD CONSTRAINT deleted_tasks_pkey PRIMARY KEY (uid, namespace);

-- +goose Down
DELETE FROM deleted_tasks d WHERE EXISTS (SELECT FROM deleted_tasks o WHERE o.uid = d.uid AND o.namespace < d.namespace);
ALTER TABLE deleted_tasks DROP CONSTRAINT deleted_tasks_pkey;
ALTER TABLE deleted_tasks ADD CONSTRAINT deleted_tasks_pkey PRIMARY KEY (uid);
ALTER TABLE deleted_tasks DROP COLUMN namespace;
ALTER TABLE events DROP COLUMN imported_by, DROP COLUMN imported_id;
