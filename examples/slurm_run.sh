#!/usr/bin/env bash
# Two losses on CUB on eight nodes of a Slurm cluster: search, evaluation and the table.
#
#   examples/slurm_run.sh search    # returns at once; repeat it to continue
#   examples/slurm_run.sh status    # who works on what, and why tasks ended
#
# runs/ must be a folder that all nodes see. Put the password of the database into ~/.pgpass.
set -euo pipefail
: "${HARNESS_STORAGE:?must be a database that all nodes reach: postgresql+psycopg://USER@HOST/DB}"
: "${HARNESS_DATA:?must be the folder that holds CUB_200_2011}"

case "${1:-search}" in
search)
    harness data check cub
    harness data prepare cub    # once, not on every node
    harness submit search --loss ccp proxyanchor --dataset cub --nodes 8 --gpus 4 \
        --hours 24 --partition gpu --slurm account=vision --then eval --then report
    ;;
status)
    harness status --dataset cub
    ;;
*)
    echo "what? search or status" >&2
    exit 2
    ;;
esac
