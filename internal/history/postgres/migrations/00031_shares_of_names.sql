-- +goose Up

-- Turns belong to names of namespaces: one that is deleted and made anew gets no turn of its own for
-- each of its former histories. A name contains no @, see 00023. pg_restore --clean of an older dump
-- leaves the column in place, or this migration adds it again.
ALTER TABLE verifications ADD COLUMN IF NOT EXISTS turn text NOT NULL GENERATED ALWAYS AS (split_part(namespace, '@', 1)) STORED;
CREATE INDEX IF NOT EXISTS verifications_by_turn ON verifications (turn, due);
DROP INDEX IF EXISTS verifications_turns;

-- +goose Down
CREATE INDEX verifications_turns ON verifications (namespace, due);
DROP INDEX verifications_by_turn;
ALTER TABLE verifications DROP COLUMN turn;
