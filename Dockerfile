# The image of a worker, for `spawner: {kind: spcs}` or any other place that runs containers.
# How to build and push it: schemas/spcs/README.md. The tests read this file; they do not build it.
# The base is pinned by digest, because a tag may become another image. For a newer one:
# docker build --build-arg BASE=python:3.13-slim-bookworm@$(docker buildx imagetools inspect \
#     python:3.13-slim-bookworm --format '{{.Manifest.Digest}}')
ARG BASE=python:3.13-slim-bookworm@sha256:01f42367a0a94ad4bc17111776fd66e3500c1d87c15bbd6055b7371d39c124fb
FROM ${BASE}

WORKDIR /opt/loadgen
ENV PATH="/opt/loadgen/bin:$PATH" PIP_NO_CACHE_DIR=1

# Packages first, by what bin/ uses everywhere, without those for development: they are installed again only when the
# lock has changed.
COPY requirements.lock ./
COPY bin/ bin/
RUN bash -euo pipefail -c 'root=$PWD; source bin/.bootstrap; ensure_environment .venv requirements.lock'

COPY loadgen/ loadgen/
COPY orchestrator/ orchestrator/
COPY schemas/ schemas/
RUN .venv/bin/python -m compileall -q loadgen orchestrator schemas \
    && useradd --create-home --uid 10001 loadgen

# Nothing below /opt/loadgen is writable for it; what a worker could not store goes to its home.
USER loadgen
ENTRYPOINT ["/opt/loadgen/bin/run_worker"]
