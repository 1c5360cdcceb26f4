#!/bin/bash
# Makes the database cluster in $PGDATA on the first start, and then runs what
# it is given. It understands POSTGRES_USER, POSTGRES_DB, and POSTGRES_PASSWORD
# or POSTGRES_PASSWORD_FILE.
set -euo pipefail

if [ "${1:-postgres}" != postgres ] && [ "${1#-}" = "$1" ]; then
  exec "$@"
fi
if [ "${1:-}" = "" ] || [ "${1#-}" != "$1" ]; then
  set -- postgres "$@"
fi

mkdir -p "$PGDATA"
if [ ! -O "$PGDATA" ]; then
  echo "PostgreSQL only takes a data folder of its own user ($(id -u)), and $PGDATA belongs to $(stat -c %u "$PGDATA"): set PGDATA to a folder below the volume, as in $PGDATA/pgdata" >&2
  exit 1
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  user=${POSTGRES_USER:-postgres}
  database=${POSTGRES_DB:-$user}
  password=${POSTGRES_PASSWORD:-}
  if [ -n "${POSTGRES_PASSWORD_FILE:-}" ]; then
    password=$(cat "$POSTGRES_PASSWORD_FILE")
  fi
  if [ -z "$password" ]; then
    echo "PostgreSQL needs a password for $user: set POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE" >&2
    exit 1
  fi
  # A start that was killed half-way has left no PG_VERSION that counts.
  new="$PGDATA/.new"
  rm -rf "$new"
  mkdir -p "$new"
  chmod 0700 "$new"
  initdb --pgdata="$new" --username="$user" --pwfile=<(printf '%s' "$password") \
    --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8 >/dev/null
  printf "listen_addresses = '*'\n" >>"$new/postgresql.conf"
  printf 'host all all all scram-sha-256\n' >>"$new/pg_hba.conf"
  if [ "$database" != postgres ]; then
    pg_ctl --pgdata="$new" --wait --silent --options="-c listen_addresses='' -k /tmp" start
    createdb --host=/tmp --username="$user" "$database"
    pg_ctl --pgdata="$new" --wait --silent --mode=fast stop
  fi
  # PG_VERSION last: it says that all the rest is there.
  find "$new" -mindepth 1 -maxdepth 1 ! -name PG_VERSION -exec mv -t "$PGDATA" {} +
  mv "$new/PG_VERSION" "$PGDATA/"
  rmdir "$new"
fi
chmod 0700 "$PGDATA" 2>/dev/null || true
exec "$@"
