#!/bin/sh
# One night under cron: a line of JSON to the journal of nights, talk to the log, and an exit
# code that says whether anybody must look.
#
#   RECSYS_CONFIG       the config
#   RECSYS_COMMAND      how recsys is called; default: the .venv of this checkout
#   RECSYS_LOG_DIR      default: /var/log/recsys
#   RECSYS_ENVIRONMENT  file of secrets, NAME=value a line; default: /etc/recsys/environment
#
# Exit codes: 0 a run ended, or another one holds the root; 1 it failed; 2 the config is wrong.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
config=${RECSYS_CONFIG:?RECSYS_CONFIG must name the config}
command=${RECSYS_COMMAND:-$here/.venv/bin/recsys}
logs=${RECSYS_LOG_DIR:-/var/log/recsys}
secrets=${RECSYS_ENVIRONMENT:-/etc/recsys/environment}

umask 027
mkdir -p "$logs" || exit 1
if [ -r "$secrets" ]; then
    set -a
    # shellcheck source=/dev/null
    . "$secrets"
    set +a
fi

now=$(date -u +%Y-%m-%dT%H:%M:%SZ)
# $command is words: it may be `uv run recsys`.
# shellcheck disable=SC2086
summary=$($command run "$config" --json 2>>"$logs/nightly.log")
code=$?

printf '{"at": "%s", "exit": %d, "summary": %s}\n' "$now" "$code" "${summary:-null}" \
    >>"$logs/nights.jsonl"

case $code in
75) exit 0 ;; # Another run holds the root: nothing is wrong.
*) exit "$code" ;;
esac
