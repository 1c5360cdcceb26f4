-- +goose Up

-- Under which key the rows of a namespace are stored: what other tables call namespace is this
-- key. For the first UID that was known under a name it is the name, for a later one the name, an
-- @ and the UID. uid is 'unknown' for a namespace that was gone before UIDs were recorded. joined
-- are former keys whose rows have this key now, but for messages and pieces, which are stored
-- under the key that is part of their hashes. since is when the namespace got the key.
-- pg_restore --clean of an older dump leaves the table in place.
CREATE TABLE IF NOT EXISTS namespaces (
    name   text NOT NULL,
    uid    text NOT NULL,
    key    text NOT NULL,
    joined text[] NOT NULL DEFAULT '{}',
    since  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, uid)
);
CREATE INDEX IF NOT EXISTS namespaces_by_key ON namespaces (key);

-- +goose Down
DROP TABLE namespaces;
