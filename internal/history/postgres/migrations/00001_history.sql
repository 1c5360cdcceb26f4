-- +goose Up

-- A task as its daemon knows it. The row is the lock under which everything about the
-- task is written; attempt is the fence.
CREATE TABLE tasks (
    uid               text PRIMARY KEY,
    namespace         text NOT NULL,
    name              text NOT NULL,
    attempt           bigint NOT NULL,
    last_sequence     bigint NOT NULL DEFAULT 0,
    active_branch     bigint NOT NULL,
    checkpoint_count  bigint NOT NULL DEFAULT 0,
    latest_checkpoint bigint NOT NULL DEFAULT 0,
    created_at        timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX tasks_by_name ON tasks (namespace, name, created_at DESC);

-- A branch of a conversation: what its parent has up to base_position, followed by its
-- own entries. The base_ columns are the sums at the base, the head_ columns what is
-- needed to append without reading (conversation.Log).
CREATE TABLE branches (
    id                  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_uid            text NOT NULL REFERENCES tasks (uid) ON DELETE CASCADE,
    number              bigint NOT NULL,
    parent_id           bigint REFERENCES branches (id),
    reason              text NOT NULL DEFAULT '',
    base_position       bigint NOT NULL DEFAULT 0,
    base_tool_calls     bigint NOT NULL DEFAULT 0,
    base_input_tokens   bigint NOT NULL DEFAULT 0,
    base_output_tokens  bigint NOT NULL DEFAULT 0,
    base_cost_micro_usd bigint NOT NULL DEFAULT 0,
    head_position       bigint NOT NULL,
    head_tool_calls     bigint NOT NULL,
    head_input_tokens   bigint NOT NULL,
    head_output_tokens  bigint NOT NULL,
    head_cost_micro_usd bigint NOT NULL,
    head_boundary       bigint NOT NULL,
    head_settled        bigint NOT NULL,
    head_open_calls     jsonb NOT NULL DEFAULT '[]',
    created_at          timestamptz NOT NULL DEFAULT now(),
    UNIQUE (task_uid, number)
);
CREATE INDEX branches_by_parent ON branches (parent_id) WHERE parent_id IS NOT NULL;

ALTER TABLE tasks ADD CONSTRAINT tasks_active_branch
    FOREIGN KEY (active_branch) REFERENCES branches (id) DEFERRABLE INITIALLY DEFERRED;

-- Message contents, once per namespace. Call ids are not part of them: they are in
-- entries.
CREATE TABLE messages (
    namespace   text NOT NULL,
    hash        bytea NOT NULL,
    role        text NOT NULL,
    body        text NOT NULL,
    raw         text NOT NULL,
    has_call    boolean NOT NULL,
    tool_name   text NOT NULL,
    tool_input  text NOT NULL,
    has_result  boolean NOT NULL,
    tool_output text NOT NULL,
    is_error    boolean NOT NULL,
    interrupted boolean NOT NULL,
    PRIMARY KEY (namespace, hash)
);

-- A message at its position. The sums include it; boundary is the turn boundary that its
-- position snaps to.
CREATE TABLE entries (
    branch_id      bigint NOT NULL REFERENCES branches (id) ON DELETE CASCADE,
    position       bigint NOT NULL,
    time           timestamptz NOT NULL,
    attempt        bigint NOT NULL,
    sequence       bigint NOT NULL,
    hash           bytea NOT NULL,
    call_id        text NOT NULL,
    result_call_id text NOT NULL,
    boundary       bigint NOT NULL,
    tool_calls     bigint NOT NULL,
    input_tokens   bigint NOT NULL,
    output_tokens  bigint NOT NULL,
    cost_micro_usd bigint NOT NULL,
    PRIMARY KEY (branch_id, position)
);

CREATE TABLE checkpoints (
    task_uid          text NOT NULL REFERENCES tasks (uid) ON DELETE CASCADE,
    number            bigint NOT NULL,
    attempt           bigint NOT NULL,
    sequence          bigint NOT NULL,
    trigger           text NOT NULL,
    time              timestamptz NOT NULL,
    message           text NOT NULL,
    commit            text NOT NULL,
    tree              text NOT NULL,
    parent            text NOT NULL,
    base              text NOT NULL,
    state_commit      text NOT NULL,
    files_changed     integer NOT NULL,
    lines_added       bigint NOT NULL,
    lines_removed     bigint NOT NULL,
    git_head          text NOT NULL,
    git_branch        text NOT NULL,
    dirty_files       text[] NOT NULL,
    dirty_file_count  integer NOT NULL,
    files             bigint NOT NULL,
    bytes             bigint NOT NULL,
    skipped           jsonb NOT NULL,
    skipped_count     integer NOT NULL,
    durable           boolean NOT NULL,
    requested_by_name text NOT NULL,
    requested_by_uid  text NOT NULL,
    branch_id         bigint NOT NULL REFERENCES branches (id),
    branch_number     bigint NOT NULL,
    position          bigint NOT NULL,
    boundary          bigint NOT NULL,
    tool_calls        bigint NOT NULL,
    input_tokens      bigint NOT NULL,
    output_tokens     bigint NOT NULL,
    cost_micro_usd    bigint NOT NULL,
    PRIMARY KEY (task_uid, number)
);

-- The files that a checkpoint changed; in a table of their own, since lists of
-- checkpoints do not need them.
CREATE TABLE checkpoint_changes (
    task_uid text NOT NULL,
    number   bigint NOT NULL,
    changes  jsonb NOT NULL,
    PRIMARY KEY (task_uid, number),
    FOREIGN KEY (task_uid, number) REFERENCES checkpoints (task_uid, number) ON DELETE CASCADE
);

-- Completed conversation moves and their outcome.
CREATE TABLE operations (
    task_uid     text NOT NULL REFERENCES tasks (uid) ON DELETE CASCADE,
    operation_id text NOT NULL,
    ordinal      bigint GENERATED ALWAYS AS IDENTITY,
    attempt      bigint NOT NULL,
    checkpoint   bigint NOT NULL,
    reason       text NOT NULL,
    branch       text NOT NULL,
    position     bigint NOT NULL,
    tool_calls   bigint NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (task_uid, operation_id)
);
CREATE INDEX operations_by_ordinal ON operations (task_uid, ordinal DESC);

-- The timeline. Tasks that never had a pod have events too, so there is no reference to
-- tasks.
CREATE TABLE events (
    id         text COLLATE "C" PRIMARY KEY,
    namespace  text NOT NULL,
    task_uid   text NOT NULL,
    task_name  text NOT NULL,
    time       timestamptz NOT NULL,
    type       text NOT NULL,
    reason     text NOT NULL,
    actor      text NOT NULL,
    message    text NOT NULL,
    attempt    bigint NOT NULL,
    checkpoint bigint NOT NULL,
    details    jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX events_by_namespace ON events (namespace, time DESC, id DESC);
CREATE INDEX events_by_task ON events (task_uid, time DESC, id DESC);
CREATE INDEX events_by_task_name ON events (namespace, task_name, time DESC);
-- A checkpoint appears once, whether its record or the task's transition comes first.
CREATE UNIQUE INDEX events_of_checkpoints ON events (task_uid, checkpoint)
    WHERE reason = 'CheckpointCreated' AND checkpoint > 0;

-- +goose Down
DROP TABLE events, operations, checkpoint_changes, checkpoints, entries, messages;
ALTER TABLE tasks DROP CONSTRAINT tasks_active_branch;
DROP TABLE branches, tasks;
