-- +goose Up

-- The contract that each listed task belongs to; empty for none. Tasks that never began have no kept spec, and
-- belong to it all the same. pg_restore --clean of an older dump leaves the column out, and this migration
-- adds it again.
ALTER TABLE task_summaries ADD COLUMN IF NOT EXISTS contract text NOT NULL DEFAULT '';
UPDATE task_summaries t SET contract = s.contract FROM task_specs s
WHERE s.uid = t.uid AND s.namespace = t.namespace AND s.contract <> '' AND t.contract = '';

-- The tasks of a contract.
CREATE INDEX IF NOT EXISTS task_summaries_contract ON task_summaries (namespace, contract, uid) WHERE contract <> '';
DROP INDEX IF EXISTS task_specs_contract;

-- +goose Down
CREATE INDEX task_specs_contract ON task_specs (namespace, contract, uid) WHERE contract <> '';
DROP INDEX task_summaries_contract;
ALTER TABLE task_summaries DROP COLUMN contract;
