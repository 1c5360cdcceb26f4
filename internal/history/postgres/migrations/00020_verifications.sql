-- +goose Up

-- The verification of a task's checkpoints, which goes through all of them once a day. A pass
-- continues with the checkpoint next_number, or is over if that is 0. Of the last one that is over,
-- verified is when it began, and through is the newest checkpoint it reached: each up to it is
-- intact unless checkpoint_verdicts says otherwise. pg_restore --clean of an older dump leaves
-- both tables in place, with rows about tasks that may be others by now; a foreign key would keep
-- it from removing tasks. The rows of a task are deleted with it.
CREATE TABLE IF NOT EXISTS verifications (
    task_id  integer PRIMARY KEY,
    due      timestamptz NOT NULL,
    begun    timestamptz NOT NULL,
    verified timestamptz,
    changed  timestamptz NOT NULL,
    next_number integer NOT NULL DEFAULT 0,
    through  integer NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS verifications_due ON verifications (due);
CREATE INDEX IF NOT EXISTS verifications_changed ON verifications (changed, task_id);

-- Checkpoints that are damaged, or were. damage says what is wrong with the objects in the
-- gitstore, conversation with the messages; both are empty once it was healed.
CREATE TABLE IF NOT EXISTS checkpoint_verdicts (
    task_id      integer NOT NULL,
    number       integer NOT NULL,
    found        timestamptz NOT NULL,
    verified     timestamptz NOT NULL,
    damage       text NOT NULL DEFAULT '',
    conversation text NOT NULL DEFAULT '',
    PRIMARY KEY (task_id, number)
);

TRUNCATE verifications, checkpoint_verdicts;

-- +goose Down
DROP TABLE checkpoint_verdicts;
DROP TABLE verifications;
