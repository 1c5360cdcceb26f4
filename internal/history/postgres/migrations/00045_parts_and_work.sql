-- +goose Up

-- What each task has added to the cost of its contract, and of the month spent_month, in UTC: it takes back
-- no more than that. worked_at is when the agent last did what only an agent does. pg_restore --clean of an
-- older dump leaves the columns out, and this migration adds them again.
ALTER TABLE tasks
    ADD COLUMN IF NOT EXISTS contract_cost_micro_usd bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS spent_month text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS month_cost_micro_usd bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS worked_at timestamptz;

UPDATE tasks SET contract_cost_micro_usd = least(spent_cost_micro_usd, 500000000000000) WHERE contract <> '';

-- Earlier versions have counted more than a budget can allow.
UPDATE tasks SET
    spent_input_tokens = least(spent_input_tokens, 500000000000000), spent_output_tokens = least(spent_output_tokens, 500000000000000),
    spent_cost_micro_usd = least(spent_cost_micro_usd, 500000000000000), spent_tool_calls = least(spent_tool_calls, 500000000000000)
WHERE greatest(spent_input_tokens, spent_output_tokens, spent_cost_micro_usd, spent_tool_calls) > 500000000000000;

UPDATE budgets SET
    spent_input_tokens = least(spent_input_tokens, 500000000000000), spent_output_tokens = least(spent_output_tokens, 500000000000000),
    spent_cost_micro_usd = least(spent_cost_micro_usd, 500000000000000), spent_tool_calls = least(spent_tool_calls, 500000000000000),
    spent_checkpoints = least(spent_checkpoints, 500000000000000)
WHERE greatest(spent_input_tokens, spent_output_tokens, spent_cost_micro_usd, spent_tool_calls, spent_checkpoints) > 500000000000000;

-- +goose Down
ALTER TABLE tasks DROP COLUMN contract_cost_micro_usd, DROP COLUMN spent_month, DROP COLUMN month_cost_micro_usd, DROP COLUMN worked_at;
