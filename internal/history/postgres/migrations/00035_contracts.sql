-- +goose Up

-- The place of each task in its contract, or below its parent; empty for none. pg_restore --clean of an
-- older dump leaves the columns in place, or this migration adds them again.
ALTER TABLE task_specs
    ADD COLUMN IF NOT EXISTS contract text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS role text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS phase text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS parent_uid text NOT NULL DEFAULT '';

-- The tasks of a contract.
CREATE INDEX IF NOT EXISTS task_specs_contract ON task_specs (namespace, contract, uid) WHERE contract <> '';

-- +goose Down
DROP INDEX task_specs_contract;
ALTER TABLE task_specs DROP COLUMN contract, DROP COLUMN role, DROP COLUMN phase, DROP COLUMN parent_uid;
