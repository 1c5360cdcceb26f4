-- +goose Up

-- What a completed rewind rewound, as JSON (history.Rewound), for one that undoes it; null for
-- other operations, and for rewinds of older daemons. The column is still there after
-- pg_restore of a dump that has it.
ALTER TABLE operations ADD COLUMN IF NOT EXISTS details jsonb;

-- +goose Down
ALTER TABLE operations DROP COLUMN details;
