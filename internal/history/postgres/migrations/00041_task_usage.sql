-- +goose Up

-- How much room each call of a tool takes.
ALTER TABLE tool_calls ADD COLUMN IF NOT EXISTS bytes bigint NOT NULL GENERATED ALWAYS AS (
    512 + octet_length(arguments) + octet_length(answer) + coalesce(octet_length(data), 0)) STORED;

-- What is stored about each task beside the records of its pod, which counts for the limits as these do:
-- entries of its timeline that others have recorded, and the calls of its tools. left_out are the entries
-- that were left out at a limit since left_out_since, which one entry counts. Imports choose their UIDs,
-- hence the namespace in the key. pg_restore --clean of an older dump leaves the table in place, with
-- what was counted since; what was recorded before this migration is not counted.
CREATE TABLE IF NOT EXISTS task_usage (
    task_uid       text NOT NULL,
    namespace      text NOT NULL,
    event_bytes    bigint NOT NULL DEFAULT 0,
    call_bytes     bigint NOT NULL DEFAULT 0,
    left_out       bigint NOT NULL DEFAULT 0,
    left_out_since timestamptz,
    noted_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (task_uid, namespace)
);
CREATE INDEX IF NOT EXISTS task_usage_sizes ON task_usage (namespace) INCLUDE (event_bytes, call_bytes);
CREATE INDEX IF NOT EXISTS task_usage_by_time ON task_usage (noted_at);

TRUNCATE task_usage;

-- +goose Down
DROP TABLE task_usage;
ALTER TABLE tool_calls DROP COLUMN bytes;
