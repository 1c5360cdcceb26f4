-- +goose Up

-- The last spec of each task, as JSON and without what looks secret in it, from which a task that
-- is gone is forked. Only the manager reads it. variables and fields name what was left out:
-- variables of the agent's container, and everything else. A row is deleted with its task's
-- history. pg_restore --clean of an older dump leaves the table in place.
CREATE TABLE IF NOT EXISTS task_specs (
    uid       text PRIMARY KEY,
    namespace text NOT NULL,
    spec      text NOT NULL,
    variables text[] NOT NULL,
    fields    text[] NOT NULL,
    kept_at   timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE task_specs;
