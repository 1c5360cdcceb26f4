-- +goose Up

-- Tasks whose history another task continues, under its own UID. code_pending: the gitstore
-- has the checkpoints only under the former UID. pg_restore --clean of an older dump leaves
-- the table in place.
CREATE TABLE IF NOT EXISTS adoptions (
    former_uid   text PRIMARY KEY,
    uid          text NOT NULL,
    namespace    text NOT NULL,
    code_pending boolean NOT NULL DEFAULT true,
    adopted_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS adoptions_by_uid ON adoptions (uid);

-- The rows of a history follow it to its new UID. NOT VALID spares the reading of all rows,
-- which the constraints before these have checked.
ALTER TABLE branches DROP CONSTRAINT branches_task_uid_fkey,
    ADD CONSTRAINT branches_task_uid_fkey FOREIGN KEY (task_uid) REFERENCES tasks (uid) ON DELETE CASCADE ON UPDATE CASCADE NOT VALID;
ALTER TABLE operations DROP CONSTRAINT operations_task_uid_fkey,
    ADD CONSTRAINT operations_task_uid_fkey FOREIGN KEY (task_uid) REFERENCES tasks (uid) ON DELETE CASCADE ON UPDATE CASCADE NOT VALID;

-- +goose Down
ALTER TABLE operations DROP CONSTRAINT operations_task_uid_fkey,
    ADD CONSTRAINT operations_task_uid_fkey FOREIGN KEY (task_uid) REFERENCES tasks (uid) ON DELETE CASCADE;
ALTER TABLE branches DROP CONSTRAINT branches_task_uid_fkey,
    ADD CONSTRAINT branches_task_uid_fkey FOREIGN KEY (task_uid) REFERENCES tasks (uid) ON DELETE CASCADE;
DROP TABLE adoptions;
