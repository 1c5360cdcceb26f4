#!/bin/sh
# Starts Postgres for Clew: creates the database on a new volume, sets the password of
# the role clew to that of the Secret, and becomes the server. A start that is killed
# leaves nothing that a later start could mistake for a complete database.
set -eu
umask 077

data=/var/lib/postgresql/clew/data
fresh=$data.fresh
password=$(sed "s/'/''/g" /etc/clew/postgres/password)

if [ ! -s "$data/PG_VERSION" ]; then
  if [ -e "$data" ]; then
    echo "$data exists but contains no database; inspect it, and remove it to start with an empty one" >&2
    exit 1
  fi
  rm -rf "$fresh"
  initdb --pgdata="$fresh" --username=postgres --encoding=UTF8 --locale=C.UTF-8 --data-checksums
  postgres --single -D "$fresh" -c exit_on_error=on postgres >/dev/null <<SQL
CREATE ROLE clew LOGIN
CREATE DATABASE clew OWNER clew
SQL
  sync
  mv "$fresh" "$data"
fi

# The Secret is the truth, also after someone changed it.
postgres --single -D "$data" -c exit_on_error=on postgres >/dev/null <<SQL
SET password_encryption = 'scram-sha-256'
ALTER ROLE clew LOGIN PASSWORD '$password'
SQL

exec postgres -D "$data" \
  -c config_file=/etc/clew/config/postgresql.conf \
  -c hba_file=/etc/clew/config/pg_hba.conf
