-- +goose Up

-- Operations are keyed by kind and id. Older rows have bare ids, and their reason tells
-- their kind.
UPDATE operations AS old
SET operation_id = CASE WHEN reason = 'resume' THEN 'Resume/' ELSE 'Rewind/' END || operation_id
WHERE ((reason IN ('resume', 'rewind') AND operation_id NOT LIKE '%/%')
    OR (reason = 'rewind complete' AND operation_id LIKE '%/done' AND operation_id NOT LIKE '%/%/%'))
  AND NOT EXISTS (
    SELECT FROM operations AS new
    WHERE new.task_uid = old.task_uid
      AND new.operation_id = CASE WHEN old.reason = 'resume' THEN 'Resume/' ELSE 'Rewind/' END || old.operation_id);
