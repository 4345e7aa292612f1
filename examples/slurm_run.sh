#!/usr/bin/env bash
# Two losses on CUB, searched on eight nodes of a Slurm cluster, then evaluated on one.
#
#   examples/slurm_run.sh search    # returns at once; the same again goes on where it stopped
#   examples/slurm_run.sh show      # how far it is
#   examples/slurm_run.sh eval      # when the trials are done
#
# runs/ must be a folder that all nodes see. The password stays in the environment.
set -euo pipefail
: "${HARNESS_STORAGE:?must be a database that all nodes reach: postgresql+psycopg://USER:PASSWORD@HOST/DB}"
: "${HARNESS_DATA:?must be the folder that holds CUB_200_2011}"

case "${1:-search}" in
search)
    harness data check cub
    harness data prepare cub    # once, not on every node
    harness submit --loss ccp proxyanchor --dataset cub --nodes 8 --gpus 4 --cpus 20 \
        --hours 24 --partition gpu --slurm account=vision
    ;;
show)
    harness show --dataset cub
    ;;
eval)
    srun --gpus 4 --cpus-per-task 20 harness eval --dataset cub
    ;;
*)
    echo "what? search, show or eval" >&2
    exit 2
    ;;
esac
