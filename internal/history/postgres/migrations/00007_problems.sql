-- +goose Up

-- What stops the daemon of the newest attempt from working; empty for nothing.
ALTER TABLE tasks
    ADD COLUMN problem_reason text NOT NULL DEFAULT '',
    ADD COLUMN problem_message text NOT NULL DEFAULT '';
