# The harness in a container.
#
#   docker build --tag metric-harness:cpu .
#   docker build --tag metric-harness:cuda --build-arg VARIANT=cuda .
#
# The CUDA variant also works without a GPU, but is several gigabytes larger.
FROM python:3.13-slim

# cpu or cuda
ARG VARIANT=cpu

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1

COPY . /source
RUN sh /source/examples/kubernetes/install.sh /source "$VARIANT" && rm -r /source

# No root in the container, and a folder of its own for runs, results and the cache.
RUN useradd --create-home --uid 1000 harness
USER harness
WORKDIR /home/harness

ENTRYPOINT ["harness"]
CMD ["--help"]
