-- name: AwaitSource :exec
-- A task that was silent for long starts waiting anew: so did its source, most likely.
-- Of a shorter silence at most one pause counts, but always that much, so that every
-- task that keeps asking comes to an end.
INSERT INTO awaited_sources AS w (task_uid, namespace, since, seen)
VALUES (@task_uid, @namespace, now(), now())
ON CONFLICT (task_uid) DO UPDATE SET namespace = excluded.namespace, seen = excluded.seen,
    since = CASE WHEN w.seen < now() - make_interval(secs => @silence::float) THEN excluded.since
        ELSE w.since + greatest(now() - w.seen - make_interval(secs => @pause::float), '0'::interval) END;

-- name: SourceIsLost :one
-- The task has asked for its source for long enough, and nothing was heard from the
-- source's daemon lately: it neither wrote nor waits for a source of its own. Even if
-- it is heard from, nobody waits longer than the longest wait.
SELECT EXISTS (
    SELECT FROM awaited_sources w
    WHERE w.task_uid = @task_uid AND w.seen > now() - make_interval(secs => @silence::float)
        AND (w.seen - w.since + least(now() - w.seen, make_interval(secs => @pause::float)) >= make_interval(secs => @longest::float)
            OR w.seen - w.since + least(now() - w.seen, make_interval(secs => @pause::float)) >= make_interval(secs => @patience::float)
                AND NOT EXISTS (SELECT FROM awaited_sources s WHERE s.task_uid = @source_uid AND s.namespace = @namespace
                    AND s.seen > now() - make_interval(secs => @patience::float))
                AND NOT EXISTS (SELECT FROM tasks t WHERE t.uid = @source_uid AND t.namespace = @namespace
                    AND t.updated_at > now() - make_interval(secs => @patience::float)))
);

-- name: SourceIsFound :exec
DELETE FROM awaited_sources WHERE task_uid = @task_uid;

-- name: ForgetAwaitedSources :execrows
DELETE FROM awaited_sources WHERE task_uid IN (
    SELECT w.task_uid FROM awaited_sources w WHERE w.seen < @before::timestamptz LIMIT @up_to_rows);
