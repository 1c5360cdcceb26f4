-- +goose Up

-- What the agent of each task has spent, of which a rewind takes nothing back, unlike of the sums of a
-- branch; checkpoint_count is the number of checkpoints. contract is the task's, as of its newest
-- attempt. pg_restore --clean of an older dump leaves the columns in place, or this migration adds them
-- again.
ALTER TABLE tasks
    ADD COLUMN IF NOT EXISTS spent_input_tokens bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS spent_output_tokens bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS spent_cost_micro_usd bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS spent_tool_calls bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS contract text NOT NULL DEFAULT '';

-- Earlier versions spent on branches, each of which begins with the sums of what it inherits.
UPDATE tasks t SET
    spent_input_tokens = greatest(t.spent_input_tokens, s.input_tokens),
    spent_output_tokens = greatest(t.spent_output_tokens, s.output_tokens),
    spent_cost_micro_usd = greatest(t.spent_cost_micro_usd, s.cost_micro_usd),
    spent_tool_calls = greatest(t.spent_tool_calls, s.tool_calls)
FROM (SELECT b.task_uid,
        least(sum(b.head_input_tokens - b.base_input_tokens), 2305843009213693952)::bigint AS input_tokens,
        least(sum(b.head_output_tokens - b.base_output_tokens), 2305843009213693952)::bigint AS output_tokens,
        least(sum(b.head_cost_micro_usd - b.base_cost_micro_usd), 2305843009213693952)::bigint AS cost_micro_usd,
        least(sum(b.head_tool_calls - b.base_tool_calls), 2305843009213693952)::bigint AS tool_calls
    FROM branches b WHERE b.task_uid IS NOT NULL GROUP BY b.task_uid) s
WHERE s.task_uid = t.uid;

UPDATE tasks t SET contract = s.contract FROM task_specs s WHERE s.uid = t.uid AND s.contract <> '' AND t.contract = '';

CREATE INDEX IF NOT EXISTS tasks_by_contract ON tasks (namespace, contract) WHERE contract <> '';

-- What may be spent, and what all tasks of a contract, and all of a namespace in a month, have spent;
-- that of a task is in its own row. scope is task (name is its UID), contract, or month (such as
-- 2026-11, in UTC). A limit of 0 is none. What was spent stays when a history is deleted. pg_restore
-- --clean of an older dump leaves the table in place, with sums of what is not in the dump.
CREATE TABLE IF NOT EXISTS budgets (
    namespace            text NOT NULL,
    scope                text NOT NULL,
    name                 text NOT NULL,
    updated_at           timestamptz NOT NULL DEFAULT now(),
    input_tokens         bigint NOT NULL DEFAULT 0,
    output_tokens        bigint NOT NULL DEFAULT 0,
    cost_micro_usd       bigint NOT NULL DEFAULT 0,
    tool_calls           bigint NOT NULL DEFAULT 0,
    checkpoints          bigint NOT NULL DEFAULT 0,
    spent_input_tokens   bigint NOT NULL DEFAULT 0,
    spent_output_tokens  bigint NOT NULL DEFAULT 0,
    spent_cost_micro_usd bigint NOT NULL DEFAULT 0,
    spent_tool_calls     bigint NOT NULL DEFAULT 0,
    spent_checkpoints    bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, scope, name)
) WITH (fillfactor = 50);

TRUNCATE budgets;

INSERT INTO budgets (namespace, scope, name, spent_input_tokens, spent_output_tokens, spent_cost_micro_usd, spent_tool_calls, spent_checkpoints)
SELECT t.namespace, 'contract', t.contract,
    least(sum(t.spent_input_tokens), 2305843009213693952)::bigint, least(sum(t.spent_output_tokens), 2305843009213693952)::bigint,
    least(sum(t.spent_cost_micro_usd), 2305843009213693952)::bigint, least(sum(t.spent_tool_calls), 2305843009213693952)::bigint,
    sum(t.checkpoint_count)::bigint
FROM tasks t WHERE t.contract <> '' GROUP BY t.namespace, t.contract;

-- +goose Down
DROP TABLE budgets;
DROP INDEX tasks_by_contract;
ALTER TABLE tasks DROP COLUMN spent_input_tokens, DROP COLUMN spent_output_tokens, DROP COLUMN spent_cost_micro_usd,
    DROP COLUMN spent_tool_calls, DROP COLUMN contract;
