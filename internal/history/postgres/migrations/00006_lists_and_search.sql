-- +goose Up

-- What lists of tasks show and are sorted by. Tasks that never had a pod appear here as
-- soon as they have an event. To keep the indexes from being written with each message,
-- the sums are copied here when somebody lists tasks, or periodically: a task whose sums
-- have changed since is stale.
ALTER TABLE tasks ADD COLUMN stale boolean NOT NULL DEFAULT false;
CREATE INDEX tasks_stale ON tasks (namespace) WHERE stale;

CREATE TABLE task_summaries (
    uid            text PRIMARY KEY,
    namespace      text NOT NULL,
    name           text COLLATE "C" NOT NULL,
    state          text NOT NULL DEFAULT '',
    state_time     timestamptz NOT NULL DEFAULT 'epoch',
    preview        text NOT NULL DEFAULT '',
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    messages       bigint NOT NULL DEFAULT 0,
    tool_calls     bigint NOT NULL DEFAULT 0,
    input_tokens   bigint NOT NULL DEFAULT 0,
    output_tokens  bigint NOT NULL DEFAULT 0,
    tokens         bigint NOT NULL DEFAULT 0,
    cost_micro_usd bigint NOT NULL DEFAULT 0,
    checkpoints    bigint NOT NULL DEFAULT 0,
    -- Each prefixed with the namespace and a slash, for the index.
    tools          text[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 60);
CREATE INDEX task_summaries_by_created ON task_summaries (namespace, created_at DESC, uid DESC);
CREATE INDEX task_summaries_by_updated ON task_summaries (namespace, updated_at DESC, uid DESC);
CREATE INDEX task_summaries_by_cost ON task_summaries (namespace, cost_micro_usd DESC, uid DESC);
CREATE INDEX task_summaries_by_tokens ON task_summaries (namespace, tokens DESC, uid DESC);
CREATE INDEX task_summaries_by_messages ON task_summaries (namespace, messages DESC, uid DESC);
CREATE INDEX task_summaries_by_name ON task_summaries (namespace, name, uid);
CREATE INDEX task_summaries_by_tool ON task_summaries USING gin (tools) WITH (fastupdate = off);
CREATE INDEX task_summaries_by_state ON task_summaries (namespace, state, created_at DESC, uid DESC);

INSERT INTO task_summaries (uid, namespace, name, created_at, updated_at)
SELECT uid, namespace, name, created_at, updated_at FROM tasks;

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

UPDATE tasks t SET stale = true, tools = coalesce((
    SELECT array_agg(DISTINCT m.tool_name ORDER BY m.tool_name)
    FROM branches b JOIN entries e ON e.branch_id = b.id JOIN messages m ON m.id = e.message_id
    WHERE b.task_uid = t.uid AND m.tool_name <> ''), '{}');

-- Full-text search. Messages wait in the queue until they are indexed; one that could not
-- be indexed stays there with the reason.
CREATE TABLE search_queue (
    message_id bigint PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
    queued_at  timestamptz NOT NULL DEFAULT now(),
    error      text
);
CREATE INDEX search_queue_waiting ON search_queue (message_id) WHERE error IS NULL;

-- words contains, besides the words, one for the namespace that no text contains.
CREATE TABLE search_documents (
    message_id bigint PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
    words      tsvector NOT NULL
);
CREATE INDEX search_documents_words ON search_documents USING gin (words) WITH (fastupdate = off);

INSERT INTO search_queue (message_id) SELECT id FROM messages;
