-- +goose Up

-- Tasks that could not begin here because the checkpoint they were forked from is
-- missing: since when each asks for it, and when it last did. So a source's own daemon is
-- known to be active even if the store knows nothing else about it. pg_restore --clean of
-- an older dump leaves the table in place.
CREATE TABLE IF NOT EXISTS awaited_sources (
    task_uid  text PRIMARY KEY,
    namespace text NOT NULL,
    since     timestamptz NOT NULL,
    seen      timestamptz NOT NULL
);

-- +goose Down
DROP TABLE awaited_sources;
