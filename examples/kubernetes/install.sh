#!/bin/sh
# Install metric-harness from its source: the step of the Dockerfile that takes long.
#
#   examples/kubernetes/install.sh FOLDER cpu|cuda
set -eu
case "${2:?cpu or cuda}" in
cpu) pip install torch torchvision --index-url https://download.pytorch.org/whl/cpu ;;
cuda) ;; # pip's own build of torch brings CUDA
*)
    echo "VARIANT must be cpu or cuda, not $2" >&2
    exit 2
    ;;
esac
pip install "${1:?the folder of the source}[cluster,pretrained]"
harness list losses >/dev/null
