-- +goose Up

-- The last state of each task before it was deleted: others depend on how it ended. pg_restore --clean of
-- an older dump leaves the column in place, or this migration adds it again.
ALTER TABLE task_summaries ADD COLUMN IF NOT EXISTS last_state text NOT NULL DEFAULT '';

UPDATE task_summaries SET last_state = state WHERE state NOT IN ('', 'Deleted');

UPDATE task_summaries s SET last_state = coalesce((
    SELECT CASE e.reason
        WHEN 'TaskStarted' THEN 'Running' WHEN 'TaskResumed' THEN 'Running' WHEN 'TaskRetried' THEN 'Running'
        WHEN 'DriftDetected' THEN 'DriftDetected' ELSE substr(e.reason, 5) END
    FROM events e
    WHERE e.task_uid = s.uid AND e.namespace = s.namespace AND e.reason IN ('TaskStarted', 'TaskResumed', 'TaskRetried',
        'TaskWaiting', 'TaskQueued', 'TaskCompleted', 'TaskFailed', 'TaskSuspended', 'TaskRewound', 'DriftDetected')
    ORDER BY e.time DESC, e.id DESC LIMIT 1), '')
WHERE s.state = 'Deleted';

-- +goose Down
ALTER TABLE task_summaries DROP COLUMN last_state;
