#!/bin/sh
# The demo: nothing but a pipeline file, the public commands, and a workload. A second run goes on from the slot.
# SOURCE=gaussdb does the same through a server that speaks as GaussDB, in front of the same PostgreSQL.
# ENVIRONMENT=store, set by shop_store.py, puts the lake into an object store and applies it with a Spark cluster.
set -e
cd "$(dirname "$0")/.."

# A short run ends before Java's second compiler pays.
export JDK_JAVA_OPTIONS="${JDK_JAVA_OPTIONS:--XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=128m}"

say() { printf '\n\033[1m%s\033[0m\n' "$*" >&2; }
[ -t 2 ] || say() { printf '\n%s\n' "$*" >&2; }
SOURCE="${SOURCE:-postgres}"
case "$SOURCE" in
  postgres) PIPELINE=pipelines/shop.yaml ;;
  gaussdb) PIPELINE=pipelines/gaussdb.yaml ;;
  *) echo "SOURCE is postgres or gaussdb, not \`$SOURCE\`" >&2; exit 2 ;;
esac
ARGS="--pipeline $PIPELINE${ENVIRONMENT:+ --env $ENVIRONMENT}"
cdc() { printf '$ cdc-lake %s %s\n' "$*" "$ARGS" >&2; cdc-lake "$@" $ARGS; }

say "1  a PostgreSQL with a small shop"
python pipelines/shop_workload.py start "$SOURCE"
[ -z "$ENVIRONMENT" ] || python pipelines/shop_store.py forget

say "2  the initial copy, at the slot's consistent point (a second run: what came since)"
cdc run --once --only receive

say "3  life goes on: one round of changes of every kind"
python pipelines/shop_workload.py live "$SOURCE"

say "4  receive into bronze, apply to silver (Delta and Iceberg)"
cdc run --once

say "5  is silver equal to the source, row by row?"
cdc compare

say "6  what is in quarantine, how far behind, and the report"
cdc status
cdc report

[ -z "$ENVIRONMENT" ] || exit 0
say "next"
next() { printf '  %-72s# %s\n' "$1" "$2"; }
next "cdc-lake inspect row public.customers 1901 -p $PIPELINE" "every change of one row, from bronze"
next "cdc-lake run -p $PIPELINE" "both loops until Ctrl-C; changes meanwhile with"
next "" "  python pipelines/shop_workload.py live $SOURCE"
