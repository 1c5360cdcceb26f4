-- +goose Up

-- For which checkpoint a Checkpoint object of a name stands that a person applied without a number.
-- object_uid is empty once another task continues the history: the first object of the name stands for
-- the same checkpoint. pg_restore --clean of an older dump leaves the table in place, with rows about
-- tasks that may be others by now; a foreign key would keep it from removing tasks. The rows of a task
-- are deleted with it.
CREATE TABLE IF NOT EXISTS checkpoint_names (
    task_id    integer NOT NULL,
    name       text NOT NULL,
    number     integer NOT NULL,
    object_uid text NOT NULL,
    PRIMARY KEY (task_id, name)
);

TRUNCATE checkpoint_names;

-- +goose Down
DROP TABLE checkpoint_names;
