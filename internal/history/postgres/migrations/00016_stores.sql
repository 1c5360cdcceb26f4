-- +goose Up

-- last_record_id distinguishes the last stored record from another one with the same
-- sequence; 0 if its daemon assigned none. lost_records counts those that the daemons
-- could not send again after a loss.
ALTER TABLE tasks
    ADD COLUMN last_record_id bigint NOT NULL DEFAULT 0,
    ADD COLUMN lost_records bigint NOT NULL DEFAULT 0;

-- Why a move could not be carried out; empty if it was.
ALTER TABLE operations ADD COLUMN refused text NOT NULL DEFAULT '';

-- The highest recorded number of a transition, by which the manager notices that this
-- store went back in time. pg_restore --clean of an older dump leaves the table in place,
-- with transitions that this store lacks.
DROP TABLE IF EXISTS recorded_transitions;
CREATE TABLE recorded_transitions (
    task_uid text PRIMARY KEY,
    sequence bigint NOT NULL
);

-- A checkpoint that was durable or still to be pushed, and no longer exists anywhere;
-- refused then says why.
ALTER TABLE checkpoints ADD COLUMN lost boolean NOT NULL DEFAULT false;

-- Checkpoints with all derived values, without the changed files.
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
    coalesce(c.frozen_ms, 0)::integer AS frozen_ms,
    c.lost
FROM checkpoints c
JOIN tasks t ON t.id = c.task_id
JOIN branches b ON b.id = c.branch_id
JOIN checkpoint_contexts x ON x.id = c.context_id
LEFT JOIN entries e ON e.branch_id = c.branch_id AND e.position = c.position
LEFT JOIN checkpoints p ON p.task_id = c.task_id AND p.number = c.number - 1 AND c.parent IS NULL;
