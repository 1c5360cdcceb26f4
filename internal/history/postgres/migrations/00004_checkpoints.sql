-- +goose Up

-- What stays the same over many checkpoints of a task.
CREATE TABLE checkpoint_contexts (
    id         integer NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id    integer NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    base       bytea NOT NULL,
    git_head   bytea NOT NULL,
    git_branch text NOT NULL,
    session    text NOT NULL
);
CREATE INDEX checkpoint_contexts_by_task ON checkpoint_contexts (task_id);

-- There may be one checkpoint per message, so values that can be derived from elsewhere
-- are not repeated: digest and answered calls are those of the entry at the position, and
-- so are tokens and cost unless they are given; the parent is the previous checkpoint
-- unless it is given; and the event is the row itself. Objects are stored as bytes, and
-- zero as null.
ALTER TABLE checkpoints RENAME TO old_checkpoints;
CREATE TABLE checkpoints (
    time              timestamptz NOT NULL,
    branch_id         bigint NOT NULL,
    position          bigint NOT NULL,
    bytes             bigint,
    input_tokens      bigint,
    output_tokens     bigint,
    cost_micro_usd    bigint,
    task_id           integer NOT NULL,
    number            integer NOT NULL,
    attempt           integer NOT NULL,
    context_id        integer NOT NULL,
    files             integer,
    -- The number of messages from the turn boundary to the position.
    turn              integer,
    files_changed     integer,
    lines_added       integer,
    lines_removed     integer,
    dirty_file_count  integer,
    skipped_count     integer,
    durable           boolean NOT NULL,
    namespace         text NOT NULL,
    trigger           text NOT NULL,
    commit            bytea NOT NULL,
    tree              bytea NOT NULL,
    state_commit      bytea NOT NULL,
    parent            bytea,
    message           text,
    refused           text,
    requested_by_name text,
    requested_by_uid  text,
    dirty_files       text[],
    skipped           text,
    risky_tool        text,
    changes           text
);

-- +goose StatementBegin
-- An object id is stored as its bytes; other text follows a zero byte, or two if it would
-- otherwise be as long as an id.
CREATE FUNCTION pack_object(id text) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN id ~ '^([0-9a-f]{40}|[0-9a-f]{64})$' THEN decode(id, 'hex')
        WHEN octet_length(id) IN (19, 31) THEN '\x0000'::bytea || convert_to(id, 'UTF8')
        WHEN id = '' THEN ''::bytea
        ELSE '\x00'::bytea || convert_to(id, 'UTF8')
    END
$$;
-- +goose StatementEnd

INSERT INTO checkpoint_contexts (task_id, base, git_head, git_branch, session)
SELECT DISTINCT t.id, pack_object(c.base), pack_object(c.git_head), c.git_branch, ''
FROM old_checkpoints c JOIN tasks t ON t.uid = c.task_uid;

INSERT INTO checkpoints (
    time, branch_id, position, bytes, input_tokens, output_tokens, cost_micro_usd, task_id, number, attempt, context_id,
    files, turn, files_changed, lines_added, lines_removed, dirty_file_count, skipped_count, durable, namespace, trigger,
    commit, tree, state_commit, parent, message, refused, requested_by_name, requested_by_uid, dirty_files, skipped, changes
) SELECT
    c.time, c.branch_id, c.position, nullif(c.bytes, 0), c.input_tokens, c.output_tokens, c.cost_micro_usd,
    t.id, c.number, c.attempt, x.id,
    nullif(least(c.files, 2147483647), 0), nullif(c.position - c.boundary, 0), nullif(c.files_changed, 0),
    nullif(least(c.lines_added, 2147483647), 0), nullif(least(c.lines_removed, 2147483647), 0),
    nullif(c.dirty_file_count, 0), nullif(c.skipped_count, 0), c.durable, t.namespace, c.trigger,
    pack_object(c.commit), pack_object(c.tree), pack_object(c.state_commit), pack_object(c.parent),
    nullif(c.message, ''), nullif(c.refused, ''), nullif(c.requested_by_name, ''), nullif(c.requested_by_uid, ''),
    nullif(c.dirty_files, '{}'), nullif(c.skipped::text, '[]'), nullif(f.changes::text, '[]')
FROM old_checkpoints c
JOIN tasks t ON t.uid = c.task_uid
JOIN checkpoint_contexts x ON x.task_id = t.id AND x.base = pack_object(c.base)
    AND x.git_head = pack_object(c.git_head) AND x.git_branch = c.git_branch
LEFT JOIN checkpoint_changes f ON f.task_uid = c.task_uid AND f.number = c.number;

DROP TABLE checkpoint_changes, old_checkpoints;
DROP FUNCTION pack_object;
ALTER TABLE checkpoints ADD CONSTRAINT checkpoints_pkey PRIMARY KEY (task_id, number);
ALTER TABLE checkpoints ADD CONSTRAINT checkpoints_task FOREIGN KEY (task_id) REFERENCES tasks (id) ON DELETE CASCADE;
ALTER TABLE checkpoints ADD CONSTRAINT checkpoints_branch FOREIGN KEY (branch_id) REFERENCES branches (id);
ALTER TABLE checkpoints ADD CONSTRAINT checkpoints_context FOREIGN KEY (context_id) REFERENCES checkpoint_contexts (id);
CREATE INDEX checkpoints_by_namespace ON checkpoints (namespace, time);

-- Checkpoints with all derived values, without the changed files.
CREATE VIEW recorded_checkpoints AS
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
    coalesce(e.digest, b.base_digest)::bytea AS digest
FROM checkpoints c
JOIN tasks t ON t.id = c.task_id
JOIN branches b ON b.id = c.branch_id
JOIN checkpoint_contexts x ON x.id = c.context_id
LEFT JOIN entries e ON e.branch_id = c.branch_id AND e.position = c.position
LEFT JOIN checkpoints p ON p.task_id = c.task_id AND p.number = c.number - 1 AND c.parent IS NULL;

-- A task's operations, in order, and the position they asked for.
ALTER TABLE operations ADD COLUMN asked_position bigint NOT NULL DEFAULT 0;
