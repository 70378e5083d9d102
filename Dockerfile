# The server on NVIDIA's Triton image with vLLM: CUDA, Python 3.12, vLLM 0.24, tritonserver.
#
#   docker build -t lora-serving --build-arg BASE_DIGEST=@sha256:… --build-arg VERSION=… .
#   docker run --gpus all --shm-size 1g --read-only --tmpfs /tmp -p 8000:8000 -p 8001:8001 \
#       -v /srv/lora:/etc/lora-serving:ro -v lora-state:/var/lib/lora-serving lora-serving
#
# /etc/lora-serving holds serving.yaml and what it names (policy, adapters, the model). User 10001
# must be able to read it. The Python backend and vLLM pass data through /dev/shm: Docker's 64 MB
# are too few. With Prometheus and Grafana: deploy/compose.yaml; on a cluster: docs/kubernetes.md.
ARG BASE_IMAGE=nvcr.io/nvidia/tritonserver
ARG BASE_TAG=26.07-vllm-python-py3
# A tag may move. `docker buildx imagetools inspect $BASE_IMAGE:$BASE_TAG` shows the digest of what
# it names today; given as @sha256:…, every build starts from that and from nothing else.
ARG BASE_DIGEST=

# Only what the image lacks, in an environment that sees the image's packages. Everything the image
# has is a constraint at the version it has, so that pip fails rather than put another torch, vLLM
# or numpy before it; everything else is a constraint at the version of the lock, but fsspec's back
# ends, which follow the image's fsspec. Where the lock is newer than the image can take, pip chooses
# what fits the image, and says so; installed.txt has what it came to. Publishers' signatures need
# newer packages than an image may have: without them, adapters signed so are refused, by name.
FROM ${BASE_IMAGE}:${BASE_TAG}${BASE_DIGEST} AS packages
WORKDIR /build
COPY requirements.lock ./
COPY tools/__init__.py tools/__init__.py
COPY tools/install/ tools/install/
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Without pip inside: the image's own works there too, and nobody installs anything later.
RUN python3 -m venv --system-site-packages --without-pip /opt/packages \
    && python3 -m pip list --format=freeze > /tmp/image.txt \
    && python3 -c "from pathlib import Path; from tools.install import pins; \
image = Path('/tmp/image.txt').read_text().splitlines(); \
lock = pins.pins(Path('requirements.lock').read_text()); \
skip = pins.IMAGE_BRINGS | pins.FOLLOW_FSSPEC | {pins.name_of(pin) for pin in image}; \
print(*image, *pins.without(lock, skip), sep='\n')" > /tmp/constraints.txt \
    && install() { python3 -m pip --python /opt/packages/bin/python3 install --constraint "$@"; } \
    && set -- aiohttp cryptography fsspec gcsfs jinja2 psutil "pyjwt[crypto]" pydantic PyYAML rich \
        s3fs safetensors typer watchfiles \
    && { install /tmp/constraints.txt "$@" \
        || { echo "NOTICE: the lock does not fit the image" && install /tmp/image.txt "$@"; }; } \
    && { install /tmp/constraints.txt model-signing pyOpenSSL \
        || echo "NOTICE: the image's packages do not fit model-signing's"; } \
    && python3 -m pip --python /opt/packages/bin/python3 list > /opt/packages/installed.txt

FROM ${BASE_IMAGE}:${BASE_TAG}${BASE_DIGEST}
ARG BASE_IMAGE
ARG BASE_TAG
ARG BASE_DIGEST
# What is built: a version, a commit, when (RFC 3339).
ARG VERSION=0
ARG REVISION=
ARG CREATED=
LABEL org.opencontainers.image.title="lora-serving" \
      org.opencontainers.image.description="One base model, many LoRA adapters, one Triton server" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE_IMAGE}:${BASE_TAG}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}"

USER 0:0
WORKDIR /opt/lora-serving
COPY --from=packages /opt/packages/ /opt/packages/
COPY LICENSE requirements.lock ./
COPY python_backend/ python_backend/
COPY ensemble/ ensemble/
COPY model_repository/ model_repository/
COPY tools/ tools/
COPY deploy/image/ deploy/image/

ENV PATH=/opt/packages/bin:$PATH PYTHONPATH=/opt/lora-serving \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# A part that cannot be imported stops the build, not the first start. No GPU is needed for it.
RUN python3 -c "import ensemble.gate, python_backend.server, tools.serve, tools.health" \
    && python3 -c "from importlib.metadata import version as v; print('vLLM', v('vllm'))"

# Group 0 may write too: OpenShift runs containers as a random user of that group, one without a
# name, which torch asks for. The root file system may be read-only: what is written goes here, to
# /tmp and to /dev/shm.
ENV HOME=/var/lib/lora-serving USER=lora
RUN useradd --uid 10001 --gid 0 --no-create-home --home-dir "$HOME" lora \
    && mkdir -p "$HOME" && chown 10001:0 "$HOME" && chmod 0770 "$HOME"
VOLUME /var/lib/lora-serving
USER 10001:0

EXPOSE 8000 8001 8002
STOPSIGNAL SIGTERM
# Loading a large model takes minutes.
HEALTHCHECK --start-period=15m --interval=10s --timeout=5s --retries=3 \
    CMD ["python3", "-m", "tools", "health", "--state-dir", "/var/lib/lora-serving/state"]
# NVIDIA's entrypoint checks the driver and then becomes the command.
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh", "/opt/lora-serving/deploy/image/entrypoint.sh"]
