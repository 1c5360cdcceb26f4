#!/bin/sh
# Starts Postgres for Clew: makes the database on a new volume, gives the role
# clew the password of the Secret, and becomes the server. A start that is
# killed half-way through leaves nothing that a later one takes for whole.
set -eu
umask 077

data=/var/lib/postgresql/clew/data
fresh=$data.fresh
password=$(sed "s/'/''/g" /etc/clew/postgres/password)

if [ ! -s "$data/PG_VERSION" ]; then
  if [ -e "$data" ]; then
    echo "$data exists but holds no database; look at it, and remove it to start anew" >&2
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
