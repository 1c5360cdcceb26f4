-- +goose Up

-- The calls of supervisors' tools that change something. The manager carries out those that are not
-- answered. ordinal is their order; id becomes part of the ids of operations, and is therefore never
-- used again when this database is restored from an older copy, as ordinal may be. call_key was given
-- by the agent, and digest is that of the tool and its arguments, which are dropped with the answer.
-- delivered is when the answer was known to have reached the agent, or when the conversation was taken
-- back in which it was called: from then on the same call is another one. noted is what the manager is
-- about to do. pg_restore --clean of an older dump leaves the table in place, with rows about tasks that
-- may be others by now; a foreign key would keep it from removing tasks. The rows of a task are deleted
-- with it.
CREATE TABLE IF NOT EXISTS tool_calls (
    ordinal   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    made      timestamptz NOT NULL DEFAULT now(),
    answered  timestamptz,
    delivered timestamptz,
    attempt   bigint NOT NULL,
    task_id   integer NOT NULL,
    refused   boolean NOT NULL DEFAULT false,
    id        text NOT NULL,
    tool      text NOT NULL,
    call_key  text NOT NULL,
    digest    text NOT NULL,
    arguments bytea NOT NULL,
    noted     text NOT NULL DEFAULT '',
    answer    text NOT NULL DEFAULT '',
    data      bytea
);
CREATE UNIQUE INDEX IF NOT EXISTS tool_calls_by_id ON tool_calls (id);
CREATE UNIQUE INDEX IF NOT EXISTS tool_calls_by_key ON tool_calls (task_id, call_key) WHERE call_key <> '';
CREATE INDEX IF NOT EXISTS tool_calls_by_task ON tool_calls (task_id, ordinal);
CREATE INDEX IF NOT EXISTS tool_calls_undelivered ON tool_calls (task_id, digest) WHERE delivered IS NULL;
CREATE INDEX IF NOT EXISTS tool_calls_pending ON tool_calls (ordinal) WHERE answered IS NULL;
CREATE INDEX IF NOT EXISTS tool_calls_unanswered ON tool_calls (task_id) WHERE answered IS NULL;

TRUNCATE tool_calls;

-- +goose Down
DROP TABLE tool_calls;
