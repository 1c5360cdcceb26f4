-- name: Spend :many
-- Adds what a task has spent to the sums of the month and, unless that is empty, of its contract. Their
-- rows are locked until the transaction ends, in this order for everybody. A cost may be negative: it takes
-- back what the task itself has added to that sum. Returns since when the least is known that the contract
-- has spent, if it is.
WITH changed AS (INSERT INTO budgets (namespace, scope, name, spent_input_tokens, spent_output_tokens, spent_cost_micro_usd, spent_tool_calls, spent_checkpoints)
SELECT @namespace::text, k.scope, k.name, @input_tokens::bigint, @output_tokens::bigint, greatest(k.cost, 0), @tool_calls::bigint, @checkpoints::bigint
FROM (SELECT 'contract' AS scope, @contract::text AS name, @contract_cost::bigint AS cost WHERE @contract::text <> ''
    UNION ALL SELECT 'month', @month::text, @month_cost::bigint) k
ORDER BY k.scope
ON CONFLICT (namespace, scope, name) DO UPDATE SET updated_at = now(),
    spent_input_tokens = least(budgets.spent_input_tokens + excluded.spent_input_tokens, @most::bigint),
    spent_output_tokens = least(budgets.spent_output_tokens + excluded.spent_output_tokens, @most::bigint),
    spent_cost_micro_usd = least(greatest(budgets.spent_cost_micro_usd
        + CASE excluded.scope WHEN 'contract' THEN @contract_cost::bigint ELSE @month_cost::bigint END, 0), @most::bigint),
    spent_tool_calls = least(budgets.spent_tool_calls + excluded.spent_tool_calls, @most::bigint),
    spent_checkpoints = least(budgets.spent_checkpoints + excluded.spent_checkpoints, @most::bigint)
RETURNING budgets.scope, budgets.least_since)
SELECT least_since FROM changed WHERE scope = 'contract' AND least_since IS NOT NULL;

-- name: AddLeastSpent :exec
-- Adds what a task has spent to the least that its contract has.
UPDATE budgets SET
    least_input_tokens = least(least_input_tokens + @input_tokens::bigint, @most::bigint),
    least_output_tokens = least(least_output_tokens + @output_tokens::bigint, @most::bigint),
    least_cost_micro_usd = least(greatest(least_cost_micro_usd + @cost_micro_usd::bigint, 0), @most::bigint),
    least_tool_calls = least(least_tool_calls + @tool_calls::bigint, @most::bigint),
    least_checkpoints = least(least_checkpoints + @checkpoints::bigint, @most::bigint)
WHERE namespace = @namespace AND scope = 'contract' AND name = @contract;

-- name: RaiseLeastSpent :exec
-- Raises the least that a contract has spent to what was known at a time.
INSERT INTO budgets (namespace, scope, name, least_since, least_input_tokens, least_output_tokens, least_cost_micro_usd, least_tool_calls, least_checkpoints)
VALUES (@namespace, 'contract', @contract, @since, @input_tokens, @output_tokens, @cost_micro_usd, @tool_calls, @checkpoints)
ON CONFLICT (namespace, scope, name) DO UPDATE SET updated_at = now(), least_since = excluded.least_since,
    least_input_tokens = greatest(budgets.least_input_tokens, excluded.least_input_tokens),
    least_output_tokens = greatest(budgets.least_output_tokens, excluded.least_output_tokens),
    least_cost_micro_usd = greatest(budgets.least_cost_micro_usd, excluded.least_cost_micro_usd),
    least_tool_calls = greatest(budgets.least_tool_calls, excluded.least_tool_calls),
    least_checkpoints = greatest(budgets.least_checkpoints, excluded.least_checkpoints);

-- name: SpentOf :one
SELECT namespace, contract, greatest(last_sequence, spent_through)::bigint AS through, spent_input_tokens, spent_output_tokens, spent_cost_micro_usd, spent_tool_calls,
    (checkpoint_count - requested_checkpoints)::bigint AS spent_checkpoints
FROM tasks WHERE uid = @uid;

-- name: BudgetsOf :many
-- The rows that are about a task of a contract, which may be empty.
SELECT * FROM budgets
WHERE namespace = @namespace
    AND (scope, name) IN (('task', @uid::text), ('contract', @contract::text), ('month', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM')));

-- name: SetBudget :exec
INSERT INTO budgets (namespace, scope, name, input_tokens, output_tokens, cost_micro_usd, tool_calls, checkpoints)
VALUES (@namespace, @scope, @name, @input_tokens, @output_tokens, @cost_micro_usd, @tool_calls, @checkpoints)
ON CONFLICT (namespace, scope, name) DO UPDATE SET updated_at = now(), input_tokens = excluded.input_tokens,
    output_tokens = excluded.output_tokens, cost_micro_usd = excluded.cost_micro_usd, tool_calls = excluded.tool_calls, checkpoints = excluded.checkpoints;

-- name: DeleteTaskBudget :exec
DELETE FROM budgets WHERE namespace = @namespace AND scope = 'task' AND name = @uid;

-- name: ForgetContractSpending :exec
-- What was spent under a contract goes with the last history that names it, which is the task's. Its limit
-- stays: it may be that of a new supervisor.
UPDATE budgets b SET spent_input_tokens = 0, spent_output_tokens = 0, spent_cost_micro_usd = 0, spent_tool_calls = 0, spent_checkpoints = 0,
    least_input_tokens = 0, least_output_tokens = 0, least_cost_micro_usd = 0, least_tool_calls = 0, least_checkpoints = 0, least_since = NULL
WHERE b.namespace = @namespace AND b.scope = 'contract' AND b.name = @contract
    AND NOT EXISTS (SELECT FROM tasks t WHERE t.namespace = b.namespace AND t.contract = b.name AND t.uid <> @uid);

-- name: SetTaskContract :exec
-- To the sum of another contract the task has added nothing yet.
UPDATE tasks SET contract = @contract, contract_cost_micro_usd = 0 WHERE uid = @uid;

-- name: JoinBudgets :exec
-- The sums of a key that is given up are added to those of the one that takes its place, and so is the least
-- that each contract has spent, if that is known of one of them.
WITH moved AS (DELETE FROM budgets WHERE budgets.namespace = @former_key::text RETURNING *)
INSERT INTO budgets (namespace, scope, name, input_tokens, output_tokens, cost_micro_usd, tool_calls, checkpoints,
    spent_input_tokens, spent_output_tokens, spent_cost_micro_usd, spent_tool_calls, spent_checkpoints,
    least_input_tokens, least_output_tokens, least_cost_micro_usd, least_tool_calls, least_checkpoints, least_since)
SELECT @key::text, scope, name, input_tokens, output_tokens, cost_micro_usd, tool_calls, checkpoints,
    spent_input_tokens, spent_output_tokens, spent_cost_micro_usd, spent_tool_calls, spent_checkpoints,
    least_input_tokens, least_output_tokens, least_cost_micro_usd, least_tool_calls, least_checkpoints, least_since
FROM moved
ON CONFLICT (namespace, scope, name) DO UPDATE SET updated_at = now(), least_since = greatest(budgets.least_since, excluded.least_since),
    spent_input_tokens = least(budgets.spent_input_tokens + excluded.spent_input_tokens, @most::bigint),
    spent_output_tokens = least(budgets.spent_output_tokens + excluded.spent_output_tokens, @most::bigint),
    spent_cost_micro_usd = least(budgets.spent_cost_micro_usd + excluded.spent_cost_micro_usd, @most::bigint),
    spent_tool_calls = least(budgets.spent_tool_calls + excluded.spent_tool_calls, @most::bigint),
    spent_checkpoints = least(budgets.spent_checkpoints + excluded.spent_checkpoints, @most::bigint),
    least_input_tokens = CASE WHEN coalesce(budgets.least_since, excluded.least_since) IS NULL THEN 0 ELSE
        least(greatest(budgets.spent_input_tokens, budgets.least_input_tokens) + greatest(excluded.spent_input_tokens, excluded.least_input_tokens), @most::bigint) END,
    least_output_tokens = CASE WHEN coalesce(budgets.least_since, excluded.least_since) IS NULL THEN 0 ELSE
        least(greatest(budgets.spent_output_tokens, budgets.least_output_tokens) + greatest(excluded.spent_output_tokens, excluded.least_output_tokens), @most::bigint) END,
    least_cost_micro_usd = CASE WHEN coalesce(budgets.least_since, excluded.least_since) IS NULL THEN 0 ELSE
        least(greatest(budgets.spent_cost_micro_usd, budgets.least_cost_micro_usd) + greatest(excluded.spent_cost_micro_usd, excluded.least_cost_micro_usd), @most::bigint) END,
    least_tool_calls = CASE WHEN coalesce(budgets.least_since, excluded.least_since) IS NULL THEN 0 ELSE
        least(greatest(budgets.spent_tool_calls, budgets.least_tool_calls) + greatest(excluded.spent_tool_calls, excluded.least_tool_calls), @most::bigint) END,
    least_checkpoints = CASE WHEN coalesce(budgets.least_since, excluded.least_since) IS NULL THEN 0 ELSE
        least(greatest(budgets.spent_checkpoints, budgets.least_checkpoints) + greatest(excluded.spent_checkpoints, excluded.least_checkpoints), @most::bigint) END;

-- name: ForgetBudgets :execrows
-- Those of tasks and contracts without a history, and of months long ago. A task whose budget was set has
-- a day to begin.
DELETE FROM budgets b
WHERE b.scope = 'month' AND b.updated_at < now() - interval '13 months'
    OR b.scope = 'task' AND b.updated_at < now() - interval '1 day' AND NOT EXISTS (SELECT FROM tasks t WHERE t.uid = b.name)
    OR b.scope = 'contract' AND b.updated_at < now() - interval '1 day'
        AND NOT EXISTS (SELECT FROM tasks t WHERE t.namespace = b.namespace AND t.contract = b.name);
