-- +goose Up

-- Whether the agent was stopped while a checkpoint was taken, and for how long; NULL if
-- unknown.
ALTER TABLE checkpoints
    ADD COLUMN consistency text,
    ADD COLUMN frozen_ms integer;

CREATE OR REPLACE VIEW recorded_checkpoints AS
SELECT
    t.uid AS task_uid, c.task_id, c.number, c.attempt, c.trigger, c.time, c.namespace, t.name AS task_name,
    coalesce(c.message, '')::text AS message,
    c.commit, c.tree, c.state_commit, coalesce(c.parent, p.commit, ''::bytea)::bytea AS parent,
    x.base, x.git_head, x.git_branch, x.session,
    coalesce(c.files_changed, 0)::integer AS files_changed,
    coalesce(c.lines_added, 0)::bigint AS lines_added,
    coalesce(c.lines_removed, 0)::bigint AS lines_removed,
    coalesce(c.dirty_files, '{}')::text[] AS dirty_files,
    coalesce(c.dirty_file_count, 0)::integer AS dirty_file_count,
    coalesce(c.files, 0)::bigint AS files,
    coalesce(c.bytes, 0)::bigint AS bytes,
    coalesce(c.skipped, '')::text AS skipped,
    coalesce(c.skipped_count, 0)::integer AS skipped_count,
    coalesce(c.risky_tool, '')::text AS risky_tool,
    c.durable, coalesce(c.refused, '')::text AS refused,
    coalesce(c.requested_by_name, '')::text AS requested_by_name,
    coalesce(c.requested_by_uid, '')::text AS requested_by_uid,
    c.branch_id, b.number AS branch_number, c.position,
    (c.position - coalesce(c.turn, 0))::bigint AS boundary,
    coalesce(e.tool_calls, b.base_tool_calls)::bigint AS tool_calls,
    coalesce(c.input_tokens, e.input_tokens, b.base_input_tokens)::bigint AS input_tokens,
    coalesce(c.output_tokens, e.output_tokens, b.base_output_tokens)::bigint AS output_tokens,
    coalesce(c.cost_micro_usd, e.cost_micro_usd, b.base_cost_micro_usd)::bigint AS cost_micro_usd,
    coalesce(e.digest, b.base_digest)::bytea AS digest,
    coalesce(c.consistency, '')::text AS consistency,
    coalesce(c.frozen_ms, 0)::integer AS frozen_ms
FROM checkpoints c
JOIN tasks t ON t.id = c.task_id
JOIN branches b ON b.id = c.branch_id
JOIN checkpoint_contexts x ON x.id = c.context_id
LEFT JOIN entries e ON e.branch_id = c.branch_id AND e.position = c.position
LEFT JOIN checkpoints p ON p.task_id = c.task_id AND p.number = c.number - 1 AND c.parent IS NULL;
