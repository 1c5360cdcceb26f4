-- +goose Up

-- How the agent of the newest attempt ended that did not end well, as JSON; and
-- when a task's agent was last heard of.
ALTER TABLE tasks
    ADD COLUMN agent_end jsonb,
    ADD COLUMN active_at timestamptz;
