-- +goose Up

-- Names of Checkpoint objects are bounded: the newest of a task stay. An object that is deleted while
-- its task exists gives its name up, also one for which the checkpoint was taken.
ALTER TABLE checkpoint_names ADD COLUMN IF NOT EXISTS named_at timestamptz NOT NULL DEFAULT now();
ALTER TABLE checkpoints ADD COLUMN IF NOT EXISTS name_given_up boolean NOT NULL DEFAULT false;

-- What the Fork asked for that a task was made for, in words, and whether the task was to run.
ALTER TABLE task_specs
    ADD COLUMN IF NOT EXISTS start_from     text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS operating_mode text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE task_specs DROP COLUMN start_from, DROP COLUMN operating_mode;
ALTER TABLE checkpoints DROP COLUMN name_given_up;
ALTER TABLE checkpoint_names DROP COLUMN named_at;
