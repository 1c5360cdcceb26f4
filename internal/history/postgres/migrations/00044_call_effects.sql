-- +goose Up

-- What calls of supervisors' tools did, at the message of each call: it belongs to the conversation, and
-- outlives the calls. task_uid and task_name are those of the task that was made or steered; empty if the
-- call was about none. pg_restore --clean of an older dump leaves the table in place, with rows about
-- branches that may be others by now; a foreign key would keep it from removing branches. The rows of a
-- task's branches are deleted with them.
CREATE TABLE IF NOT EXISTS call_effects (
    branch_id  bigint NOT NULL,
    position   bigint NOT NULL,
    ordinal    bigint GENERATED ALWAYS AS IDENTITY,
    checkpoint bigint NOT NULL,
    tool       text NOT NULL,
    task_uid   text NOT NULL,
    task_name  text NOT NULL,
    phase      text NOT NULL,
    PRIMARY KEY (branch_id, position, ordinal)
);
CREATE INDEX IF NOT EXISTS call_effects_by_task ON call_effects (task_uid, ordinal) WHERE task_uid <> '';

TRUNCATE call_effects;

-- +goose Down
DROP TABLE call_effects;
