-- +goose Up

-- What lists of tasks show and are sorted by. Tasks that never got a pod are
-- here as soon as they have an event.
CREATE TABLE task_summaries (
    uid            text PRIMARY KEY,
    namespace      text NOT NULL,
    name           text COLLATE "C" NOT NULL,
    state          text NOT NULL DEFAULT '',
    state_time     timestamptz NOT NULL DEFAULT '-infinity',
    preview        text NOT NULL DEFAULT '',
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    messages       bigint NOT NULL DEFAULT 0,
    tool_calls     bigint NOT NULL DEFAULT 0,
    input_tokens   bigint NOT NULL DEFAULT 0,
    output_tokens  bigint NOT NULL DEFAULT 0,
    tokens         bigint NOT NULL DEFAULT 0,
    cost_micro_usd bigint NOT NULL DEFAULT 0,
    checkpoints    bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 60);
CREATE INDEX task_summaries_by_created ON task_summaries (namespace, created_at DESC, uid DESC);
CREATE INDEX task_summaries_by_updated ON task_summaries (namespace, updated_at DESC, uid DESC);
CREATE INDEX task_summaries_by_cost ON task_summaries (namespace, cost_micro_usd DESC, uid DESC);
CREATE INDEX task_summaries_by_tokens ON task_summaries (namespace, tokens DESC, uid DESC);
CREATE INDEX task_summaries_by_messages ON task_summaries (namespace, messages DESC, uid DESC);
CREATE INDEX task_summaries_by_name ON task_summaries (namespace, name, uid);
CREATE INDEX task_summaries_by_state ON task_summaries (namespace, state, created_at DESC, uid DESC);

-- The tools that a task has called.
CREATE TABLE task_tools (
    namespace text NOT NULL,
    tool      text NOT NULL,
    uid       text NOT NULL REFERENCES task_summaries (uid) ON DELETE CASCADE,
    PRIMARY KEY (uid, tool)
);
CREATE INDEX task_tools_by_tool ON task_tools (namespace, tool, uid);

-- What a task has used of each model, over all its branches.
CREATE TABLE task_models (
    uid                 text NOT NULL REFERENCES task_summaries (uid) ON DELETE CASCADE,
    model               text NOT NULL,
    input_tokens        bigint NOT NULL,
    cached_input_tokens bigint NOT NULL,
    output_tokens       bigint NOT NULL,
    cost_micro_usd      bigint NOT NULL,
    PRIMARY KEY (uid, model)
);

INSERT INTO task_summaries (
    uid, namespace, name, created_at, updated_at, messages, tool_calls,
    input_tokens, output_tokens, tokens, cost_micro_usd, checkpoints
) SELECT t.uid, t.namespace, t.name, t.created_at, t.updated_at, b.head_position, b.head_tool_calls,
    b.head_input_tokens, b.head_output_tokens, b.head_input_tokens + b.head_output_tokens, b.head_cost_micro_usd, t.checkpoint_count
FROM tasks t JOIN branches b ON b.id = t.active_branch;

INSERT INTO task_summaries (uid, namespace, name, created_at, updated_at)
SELECT DISTINCT ON (task_uid) task_uid, namespace, task_name, min(time) OVER (PARTITION BY task_uid), time
FROM events ORDER BY task_uid, time DESC
ON CONFLICT DO NOTHING;

UPDATE task_summaries s SET state = e.state, state_time = e.time
FROM (
    SELECT DISTINCT ON (task_uid) task_uid, time, CASE reason
        WHEN 'TaskStarted' THEN 'Running' WHEN 'TaskResumed' THEN 'Running' WHEN 'TaskRetried' THEN 'Running'
        ELSE substr(reason, 5) END AS state
    FROM events
    WHERE reason IN ('TaskStarted', 'TaskResumed', 'TaskRetried', 'TaskCompleted', 'TaskFailed', 'TaskSuspended', 'TaskRewound', 'TaskDeleted')
    ORDER BY task_uid, time DESC
) e WHERE e.task_uid = s.uid;

UPDATE task_summaries s SET preview = e.message
FROM (
    SELECT DISTINCT ON (task_uid) task_uid, message FROM events
    WHERE reason = 'UserMessage' ORDER BY task_uid, time, id
) e WHERE e.task_uid = s.uid;

INSERT INTO task_tools (namespace, tool, uid)
SELECT DISTINCT t.namespace, m.tool_name, t.uid
FROM tasks t JOIN branches b ON b.task_uid = t.uid JOIN entries e ON e.branch_id = b.id JOIN messages m ON m.id = e.message_id
WHERE m.tool_name <> '';

-- Full-text search. Messages wait in the queue until somebody has taken them
-- apart; one that could not be stays there with the reason.
CREATE TABLE search_queue (
    message_id bigint PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
    queued_at  timestamptz NOT NULL DEFAULT now(),
    error      text
);
CREATE INDEX search_queue_waiting ON search_queue (message_id) WHERE error IS NULL;

-- words holds, besides the words, one for the namespace that no text has.
CREATE TABLE search_documents (
    message_id bigint PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
    words      tsvector NOT NULL
);
CREATE INDEX search_documents_words ON search_documents USING gin (words);

INSERT INTO search_queue (message_id) SELECT id FROM messages;
