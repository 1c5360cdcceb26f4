-- +goose Up

-- The newest attempt whose pod has reported that everything its volume held is stored; 0 for none.
-- And the newest attempt of whose agent anything was recorded, with when that began. pg_restore --clean
-- of an older dump leaves the columns in place, or this migration adds them again.
ALTER TABLE tasks
    ADD COLUMN IF NOT EXISTS stored_attempt bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS agent_attempt bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS agent_since timestamptz;

-- Pods of earlier versions report nothing: the last record of one that has sent everything is that
-- the last checkpoint of its agent is durable.
UPDATE tasks t SET stored_attempt = t.attempt FROM checkpoints c
WHERE t.stored_attempt = 0 AND c.task_id = t.id AND c.number = t.latest_checkpoint AND c.attempt = t.attempt
    AND c.durable AND NOT c.lost AND c.trigger IN ('Suspend', 'Completion', 'Failure');

-- Since when it is waited for the checkpoint that is requested; and the last such request that was
-- carried out: its checkpoint, since when that was waited for, and when it was carried out.
ALTER TABLE verifications
    ADD COLUMN IF NOT EXISTS requested_since timestamptz,
    ADD COLUMN IF NOT EXISTS answered integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS answered_since timestamptz,
    ADD COLUMN IF NOT EXISTS answered_at timestamptz;

-- How long the task's agent has run in all, as its transitions have reported it.
ALTER TABLE recorded_transitions ADD COLUMN IF NOT EXISTS active_seconds bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE recorded_transitions DROP COLUMN active_seconds;
ALTER TABLE verifications DROP COLUMN requested_since, DROP COLUMN answered, DROP COLUMN answered_since, DROP COLUMN answered_at;
ALTER TABLE tasks DROP COLUMN stored_attempt, DROP COLUMN agent_attempt, DROP COLUMN agent_since;
