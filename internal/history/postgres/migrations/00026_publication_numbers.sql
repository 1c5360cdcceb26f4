-- +goose Up

-- Which of two pushes to a ref is the newer one. 0 in rows of earlier versions.
ALTER TABLE publications ADD COLUMN IF NOT EXISTS number bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE publications DROP COLUMN number;
