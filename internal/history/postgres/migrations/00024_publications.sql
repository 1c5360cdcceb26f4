-- +goose Up

-- What each task has pushed last to each ref of its repository, so that it is known as the task's
-- own work after etcd was restored from an older copy, and to a Task that adopts the history.
-- pg_restore --clean of an older dump leaves the table in place: what it says of repositories is
-- still true.
CREATE TABLE IF NOT EXISTS publications (
    task_uid   text NOT NULL,
    namespace  text NOT NULL,
    ref        text NOT NULL,
    commit     text NOT NULL,
    onto       text NOT NULL,
    checkpoint bigint NOT NULL,
    time       timestamptz NOT NULL,
    PRIMARY KEY (task_uid, namespace, ref)
);

-- +goose Down
DROP TABLE publications;
