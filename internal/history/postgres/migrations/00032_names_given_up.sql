-- +goose Up

-- Names of Checkpoint objects are bounded: the newest of a task stay. An object that is deleted while
-- its task exists gives its name up, also one for which the checkpoint was taken.
ALTER TABLE checkpoint_names ADD COLUMN IF NOT EXISTS named_at timestamptz NOT NULL DEFAULT now();
ALTER TABLE checkpoints ADD COLUMN name_given_up boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE checkpoints DROP COLUMN name_given_up;
ALTER TABLE checkpoint_names DROP COLUMN named_at;
