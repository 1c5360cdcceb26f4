-- +goose Up

-- Rows of a task refer to it by a small number. tools are the tools it has called, models
-- its usage of each model.
ALTER TABLE tasks
    ADD COLUMN id integer NOT NULL GENERATED ALWAYS AS IDENTITY,
    ADD COLUMN tools text[] NOT NULL DEFAULT '{}',
    ADD COLUMN models jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN snapshot_every bigint NOT NULL DEFAULT 0,
    ADD COLUMN snapshot_count bigint NOT NULL DEFAULT 0;
ALTER TABLE tasks ADD CONSTRAINT tasks_id UNIQUE (id);
ALTER TABLE tasks SET (fillfactor = 60);

-- Tasks whose history was deleted: nothing more may be written for them.
CREATE TABLE deleted_tasks (
    uid        text PRIMARY KEY,
    deleted_at timestamptz NOT NULL DEFAULT now()
);

-- The digest of a conversation is a chain: the digest at a position is the SHA-256 of the
-- previous one and the message's hash; that of the empty conversation is all zeros. A
-- branch without a task is what remains of a deleted task for its forks.
ALTER TABLE branches
    ALTER COLUMN task_uid DROP NOT NULL,
    ADD COLUMN base_digest bytea NOT NULL DEFAULT '\x0000000000000000000000000000000000000000000000000000000000000000',
    ADD COLUMN head_digest bytea NOT NULL DEFAULT '\x0000000000000000000000000000000000000000000000000000000000000000';
ALTER TABLE branches SET (fillfactor = 60);

-- Message contents, once per namespace, covered by the hash. Long texts keep their
-- beginning here; cuts lists the pieces they consist of.
ALTER TABLE messages RENAME TO old_messages;
CREATE TABLE messages (
    id          bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    has_call    boolean NOT NULL,
    has_result  boolean NOT NULL,
    is_error    boolean NOT NULL,
    interrupted boolean NOT NULL,
    hash        bytea NOT NULL,
    namespace   text NOT NULL,
    role        text NOT NULL,
    tool_name   text NOT NULL,
    cuts        text NOT NULL DEFAULT '',
    body        text NOT NULL,
    raw         text NOT NULL,
    tool_input  text NOT NULL,
    tool_output text NOT NULL
);

INSERT INTO messages (has_call, has_result, is_error, interrupted, hash, namespace, role, tool_name, body, raw, tool_input, tool_output)
SELECT has_call, has_result, is_error, interrupted, hash, namespace, role, tool_name, body, raw, tool_input, tool_output
FROM old_messages;
DROP TABLE old_messages;
ALTER TABLE messages ADD CONSTRAINT messages_pkey PRIMARY KEY (id);
CREATE UNIQUE INDEX messages_by_hash ON messages (hash);

-- Parts of long texts, once per namespace.
CREATE TABLE pieces (
    id        bigint NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace text NOT NULL,
    hash      bytea NOT NULL,
    data      bytea NOT NULL
);
CREATE UNIQUE INDEX pieces_by_hash ON pieces (namespace, hash);

-- +goose StatementBegin
-- lz4 is several times faster than the default, if the server has it.
DO $$
BEGIN
    EXECUTE 'ALTER TABLE pieces ALTER COLUMN data SET COMPRESSION lz4';
EXCEPTION WHEN feature_not_supported OR syntax_error OR invalid_parameter_value THEN
    NULL;
END $$;
-- +goose StatementEnd

CREATE TABLE message_pieces (
    message_id bigint NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    piece_id   bigint NOT NULL REFERENCES pieces (id),
    PRIMARY KEY (message_id, piece_id)
);
CREATE INDEX message_pieces_by_piece ON message_pieces (piece_id);

-- Pieces whose message is still to come.
CREATE TABLE pending_pieces (
    task_id    integer NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    piece_id   bigint NOT NULL REFERENCES pieces (id),
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (task_id, piece_id)
);
CREATE INDEX pending_pieces_by_piece ON pending_pieces (piece_id);

-- Rows that may no longer be needed; they are checked again before they are removed.
CREATE TABLE sweep_messages (
    message_id bigint PRIMARY KEY
);
CREATE TABLE sweep_pieces (
    piece_id bigint PRIMARY KEY
);

-- A message at its position. The sums include it; boundary is the turn boundary that its
-- position snaps to. snapshot numbers the task's automatic snapshots, whose contents are
-- all in the row; 0 if there is none.
ALTER TABLE entries RENAME TO old_entries;
CREATE TABLE entries (
    branch_id      bigint NOT NULL,
    position       bigint NOT NULL,
    message_id     bigint NOT NULL,
    time           timestamptz NOT NULL,
    sequence       bigint NOT NULL,
    boundary       bigint NOT NULL,
    tool_calls     bigint NOT NULL,
    input_tokens   bigint NOT NULL,
    output_tokens  bigint NOT NULL,
    cost_micro_usd bigint NOT NULL,
    attempt        integer NOT NULL,
    snapshot       integer NOT NULL,
    digest         bytea NOT NULL,
    call_id        text NOT NULL,
    result_call_id text NOT NULL
);

-- +goose StatementBegin
-- Parents are older than their branches, so their digests exist already.
DO $$
DECLARE
    b record;
    e record;
    chain bytea;
BEGIN
    FOR b IN SELECT * FROM branches ORDER BY id LOOP
        chain := b.base_digest;
        IF b.parent_id IS NOT NULL THEN
            SELECT coalesce(
                (SELECT digest FROM entries WHERE branch_id = b.parent_id AND position = b.base_position),
                (SELECT base_digest FROM branches WHERE id = b.parent_id)) INTO chain;
        END IF;
        UPDATE branches SET base_digest = chain WHERE id = b.id;
        FOR e IN
            SELECT o.*, m.id AS message_id FROM old_entries o JOIN messages m ON m.hash = o.hash
            WHERE o.branch_id = b.id ORDER BY o.position
        LOOP
            chain := sha256(chain || e.hash);
            INSERT INTO entries VALUES (
                e.branch_id, e.position, e.message_id, e.time, e.sequence, e.boundary, e.tool_calls,
                e.input_tokens, e.output_tokens, e.cost_micro_usd, e.attempt, 0, chain, e.call_id, e.result_call_id);
        END LOOP;
        UPDATE branches SET head_digest = chain WHERE id = b.id;
        IF b.head_position > b.base_position AND NOT EXISTS (
            SELECT FROM entries WHERE branch_id = b.id AND position = b.head_position)
        THEN
            RAISE EXCEPTION 'branch % of the task with UID % lacks messages: the history database is damaged', b.id, b.task_uid;
        END IF;
    END LOOP;
END $$;
-- +goose StatementEnd

DROP TABLE old_entries;
ALTER TABLE entries ADD CONSTRAINT entries_pkey PRIMARY KEY (branch_id, position);
ALTER TABLE entries ADD CONSTRAINT entries_branch_id_fkey FOREIGN KEY (branch_id) REFERENCES branches (id) ON DELETE CASCADE;
ALTER TABLE entries ADD CONSTRAINT entries_message_id_fkey FOREIGN KEY (message_id) REFERENCES messages (id);
CREATE INDEX entries_by_message ON entries (message_id);
CREATE INDEX entries_snapshots ON entries (branch_id, snapshot) WHERE snapshot > 0;
