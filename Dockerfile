# The image of loadgen, for `spawner: {kind: spcs}`, `spawner: {kind: kubernetes}` or any other place that runs containers.
# How to build and push it: docs/scaling.md. The tests read this file; they do not build it.
# The base is pinned by digest, because a tag may become another image. For a newer one:
# docker build --build-arg BASE=python:3.13-slim-bookworm@$(docker buildx imagetools inspect \
#     python:3.13-slim-bookworm --format '{{.Manifest.Digest}}')
# Workers need few packages. To start runs from a pod: --build-arg LOCK=requirements-kubernetes.lock
ARG BASE=python:3.13-slim-bookworm@sha256:01f42367a0a94ad4bc17111776fd66e3500c1d87c15bbd6055b7371d39c124fb
FROM ${BASE} AS build
ARG LOCK=requirements-image.lock

WORKDIR /opt/loadgen
ENV PIP_NO_CACHE_DIR=1

# Packages first, by what bin/ uses everywhere: they are installed again only when the lock has changed. What only their
# developers need does not go into the image: tests and what they import, headers, stubs, libraries to link with, f2py.
# Nor does what no command uses: modules for other versions of Python, and pygments, with which rich colours source code.
COPY ${LOCK} requirements.lock
COPY bin/ bin/
RUN bash -euo pipefail -c 'root=$PWD; source bin/.bootstrap; ensure_environment .venv requirements.lock' \
    && tag=$(.venv/bin/python -c 'import sys; print(sys.implementation.cache_tag)') \
    && find .venv/lib \( -type d \( -name tests -o -name include -o -name f2py \) -prune -o -name '*.pyi' -o -name '*.a' \
        -o -name '_simd.*.so' -o -name '*.cpython-*.so' ! -name "*.$tag-*" \) -exec rm -rf {} + \
    && cd .venv/lib/python3*/site-packages && rm -rf pip pip-* pygments pygments-*

COPY loadgen/ loadgen/
COPY orchestrator/ orchestrator/
COPY schemas/ schemas/
RUN .venv/bin/python -m compileall -q loadgen orchestrator schemas

FROM ${BASE}

WORKDIR /opt/loadgen
ENV PATH="/opt/loadgen/bin:$PATH"
RUN useradd --create-home --uid 10001 loadgen
COPY --from=build /opt/loadgen/ ./

# Nothing below /opt/loadgen is writable for it, and the root file system may be read-only: what a worker could not store
# goes to LOADGEN_SPOOL_DIR, or to its home.
USER 10001
ENTRYPOINT ["/opt/loadgen/bin/loadgen"]
CMD ["worker"]
