-- +goose Up

-- Tasks that could not begin here, since the checkpoint is missing that they were
-- started from: since when each asks for it, and when it last did. By that is known of
-- a source that its own daemon is at work, though the store knows nothing else of it.
-- pg_restore --clean of an older dump leaves the table where it is.
CREATE TABLE IF NOT EXISTS awaited_sources (
    task_uid  text PRIMARY KEY,
    namespace text NOT NULL,
    since     timestamptz NOT NULL,
    seen      timestamptz NOT NULL
);

-- +goose Down
DROP TABLE awaited_sources;
