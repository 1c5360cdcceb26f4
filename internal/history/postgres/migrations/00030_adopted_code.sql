-- +goose Up

-- Whether the gitstore has the checkpoints of an adopted history, the gitstore is asked: it may be
-- restored from an older copy at any time. The column stays, since servers of the version before
-- read it as long as they run beside newer ones.
ALTER TABLE adoptions ADD COLUMN IF NOT EXISTS code_pending boolean NOT NULL DEFAULT true;

-- +goose Down
SELECT 1;
