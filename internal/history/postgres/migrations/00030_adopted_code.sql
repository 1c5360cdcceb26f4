-- +goose Up

-- Whether the gitstore has the checkpoints of an adopted history, the gitstore is asked: it may be
-- restored from an older copy at any time.
ALTER TABLE adoptions DROP COLUMN IF EXISTS code_pending;

-- +goose Down
ALTER TABLE adoptions ADD COLUMN code_pending boolean NOT NULL DEFAULT true;
