-- +goose Up

-- What the tasks of a contract have spent at least, in rows of scope contract: what was known to be spent when
-- the database was found to be an older copy, at least_since, and what was spent since. least_since is null as
-- long as nobody has found that. pg_restore --clean of an older dump leaves the columns out, and this migration
-- adds them again.
ALTER TABLE budgets
    ADD COLUMN IF NOT EXISTS least_input_tokens bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS least_output_tokens bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS least_cost_micro_usd bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS least_tool_calls bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS least_checkpoints bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS least_since timestamptz;

-- +goose Down
ALTER TABLE budgets DROP COLUMN least_input_tokens, DROP COLUMN least_output_tokens, DROP COLUMN least_cost_micro_usd,
    DROP COLUMN least_tool_calls, DROP COLUMN least_checkpoints, DROP COLUMN least_since;
