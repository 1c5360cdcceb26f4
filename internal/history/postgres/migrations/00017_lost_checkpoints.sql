-- +goose Up

-- Few checkpoints are lost, and the manager queries them often.
CREATE INDEX checkpoints_lost ON checkpoints (task_id, number) WHERE lost;

-- +goose Down
DROP INDEX checkpoints_lost;
