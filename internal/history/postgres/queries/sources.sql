-- name: AwaitSource :exec
-- Who was not heard of for long waits anew: so did its source, most likely. Of a shorter
-- silence no more than a pause counts, and that always does, so that all who ask again
-- and again come to an end.
INSERT INTO awaited_sources AS w (task_uid, namespace, since, seen)
VALUES (@task_uid, @namespace, now(), now())
ON CONFLICT (task_uid) DO UPDATE SET namespace = excluded.namespace, seen = excluded.seen,
    since = CASE WHEN w.seen < now() - make_interval(secs => @silence::float) THEN excluded.since
        ELSE w.since + greatest(now() - w.seen - make_interval(secs => @pause::float), '0'::interval) END;

-- name: SourceIsLost :one
-- The task has asked for its source for long enough, and nothing was heard of the
-- source's daemon lately: it neither wrote, nor waits for a source of its own. However
-- much is heard of it, nobody waits for longer than that.
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
