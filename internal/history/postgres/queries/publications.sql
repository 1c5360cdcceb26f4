-- name: SetPublication :exec
-- Events may be recorded again, in any order. Numbers grow with each push, whatever clocks say;
-- those of earlier versions are 0.
INSERT INTO publications AS p (task_uid, namespace, ref, commit, onto, checkpoint, time, number)
VALUES (@task_uid, @namespace, @ref, @commit, @onto, @checkpoint, @time, @number)
ON CONFLICT (task_uid, namespace, ref) DO UPDATE
SET commit = excluded.commit, onto = excluded.onto, checkpoint = excluded.checkpoint, time = excluded.time, number = excluded.number
WHERE (p.number, p.time) <= (excluded.number, excluded.time);

-- name: Publication :one
SELECT commit, onto, checkpoint, time, number FROM publications
WHERE task_uid = @task_uid AND namespace = @namespace AND ref = @ref;

-- name: MovePublications :exec
-- A task whose adoption is carried out again may have some of its own by now, which are newer.
WITH moved AS (
    DELETE FROM publications p WHERE p.task_uid = @former_uid::text AND p.namespace = @namespace
    RETURNING p.namespace, p.ref, p.commit, p.onto, p.checkpoint, p.time, p.number
)
INSERT INTO publications (task_uid, namespace, ref, commit, onto, checkpoint, time, number)
SELECT @uid::text, m.namespace, m.ref, m.commit, m.onto, m.checkpoint, m.time, m.number FROM moved m
ON CONFLICT (task_uid, namespace, ref) DO NOTHING;

-- name: DeletePublications :exec
DELETE FROM publications WHERE task_uid = @task_uid AND namespace = @namespace;
