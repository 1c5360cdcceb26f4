-- +goose Up

-- Namespaces take turns: the oldest verification that is due of the next one is found by an index,
-- however many are due.
ALTER TABLE verifications ADD COLUMN IF NOT EXISTS namespace text NOT NULL DEFAULT '';
UPDATE verifications v SET namespace = t.namespace FROM tasks t WHERE t.id = v.task_id;
CREATE INDEX IF NOT EXISTS verifications_turns ON verifications (namespace, due);

-- +goose Down
DROP INDEX verifications_turns;
ALTER TABLE verifications DROP COLUMN namespace;
