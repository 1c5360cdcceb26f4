-- +goose Up

-- Since when no Task object has the task's UID, as far as the server has looked; null while one has.
-- The histories of gone tasks are deleted after a time, which is counted from here: a cluster that was
-- lost takes all Tasks with it at once.
ALTER TABLE tasks ADD COLUMN IF NOT EXISTS gone_since timestamptz;
CREATE INDEX IF NOT EXISTS tasks_gone ON tasks (id) WHERE gone_since IS NOT NULL;

-- Where a task started that started from another one, and the Fork that it was made for: what a task
-- has to know that continues its history. pg_restore --clean of an older dump leaves these columns in
-- place, or this migration adds them again.
ALTER TABLE task_specs
    ADD COLUMN IF NOT EXISTS fork             text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS start_uid        text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS start_checkpoint bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS start_commit     text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS start_position   bigint NOT NULL DEFAULT 0;
CREATE INDEX IF NOT EXISTS task_specs_by_fork ON task_specs (namespace, fork) WHERE fork <> '';

-- +goose Down
DROP INDEX task_specs_by_fork;
ALTER TABLE task_specs DROP COLUMN fork, DROP COLUMN start_uid, DROP COLUMN start_checkpoint, DROP COLUMN start_commit, DROP COLUMN start_position;
DROP INDEX tasks_gone;
ALTER TABLE tasks DROP COLUMN gone_since;
