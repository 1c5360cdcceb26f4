-- +goose Up

-- What a task has stored, and what was left out since it, or its namespace, reached the
-- limit: limit_since is when that was, limit_noted when the conversation was last told.
ALTER TABLE tasks
    ADD COLUMN stored_bytes bigint NOT NULL DEFAULT 0,
    ADD COLUMN left_out_records bigint NOT NULL DEFAULT 0,
    ADD COLUMN left_out_bytes bigint NOT NULL DEFAULT 0,
    ADD COLUMN limit_since timestamptz,
    ADD COLUMN limit_noted timestamptz,
    ADD COLUMN limit_message text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE tasks DROP COLUMN stored_bytes, DROP COLUMN left_out_records, DROP COLUMN left_out_bytes,
    DROP COLUMN limit_since, DROP COLUMN limit_noted, DROP COLUMN limit_message;
