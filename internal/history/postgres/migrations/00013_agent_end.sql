-- +goose Up

-- How the agent of the newest attempt that ended failed, as JSON; and when a task's agent
-- was last active.
ALTER TABLE tasks
    ADD COLUMN agent_end jsonb,
    ADD COLUMN active_at timestamptz;
