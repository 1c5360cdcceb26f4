-- +goose Up

-- The checkpoint that somebody waits to have verified, before the next part of a pass over all of
-- them; 0 if nobody does. pg_restore --clean of an older dump leaves the column in place, or this
-- migration adds it again.
ALTER TABLE verifications ADD COLUMN IF NOT EXISTS requested integer NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE verifications DROP COLUMN requested;
