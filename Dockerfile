# The server on NVIDIA's Triton image with vLLM: CUDA, Python 3.12, vLLM 0.24, tritonserver.
#
#   docker build -t lora-serving .
#   docker run --gpus all --shm-size 1g -p 8000:8000 -p 8001:8001 -p 8002:8002 \
#       -v /srv/lora:/etc/lora-serving:ro -v lora-state:/var/lib/lora-serving lora-serving
#
# /etc/lora-serving holds serving.yaml and what it names (policy, adapters, the model). User 10001
# must be able to read it. The Python backend and vLLM pass data through /dev/shm: Docker's 64 MB
# are too few.
ARG BASE_IMAGE=nvcr.io/nvidia/tritonserver:26.07-vllm-python-py3
FROM ${BASE_IMAGE}

USER root
WORKDIR /opt/lora-serving

# Only what the image lacks. Everything it has is a constraint at the version it has, so that pip
# fails rather than touch its torch, vLLM or numpy; everything else is a constraint at the version
# of the lock, but fsspec's back ends, which follow the image's fsspec. Publishers' signatures need
# newer packages than an image may have: without them, adapters signed so are refused, by name.
COPY requirements.lock ./
COPY tools/__init__.py tools/__init__.py
COPY tools/install/ tools/install/
ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m pip list --format=freeze > /tmp/image.txt \
    && python3 -c "from pathlib import Path; from tools.install import pins; \
image = Path('/tmp/image.txt').read_text().splitlines(); \
lock = pins.pins(Path('requirements.lock').read_text()); \
skip = pins.IMAGE_BRINGS | pins.FOLLOW_FSSPEC | {pins.name_of(pin) for pin in image}; \
print(*image, *pins.without(lock, skip), sep='\n')" > /tmp/constraints.txt \
    && python3 -m pip install --constraint /tmp/constraints.txt \
        aiohttp cryptography fsspec gcsfs jinja2 "pyjwt[crypto]" pydantic PyYAML rich s3fs \
        safetensors typer watchfiles \
    && { python3 -m pip install --constraint /tmp/constraints.txt model-signing pyOpenSSL \
        || echo "NOTICE: the image's packages do not fit model-signing's"; } \
    && rm /tmp/image.txt /tmp/constraints.txt

COPY LICENSE ./
COPY python_backend/ python_backend/
COPY ensemble/ ensemble/
COPY model_repository/ model_repository/
COPY tools/ tools/

ENV PYTHONPATH=/opt/lora-serving PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# A part that cannot be imported stops the build, not the first start. No GPU is needed for it.
RUN python3 -c "import ensemble.gate, python_backend.server, tools.serve" \
    && python3 -c "from importlib.metadata import version as v; print('vLLM', v('vllm'))"

# Group 0 may write too: OpenShift runs containers as a random user of that group, one without a
# name, which torch asks for.
ENV HOME=/var/lib/lora-serving USER=lora
RUN useradd --uid 10001 --gid 0 --no-create-home --home-dir "$HOME" lora \
    && mkdir -p "$HOME" && chown 10001:0 "$HOME" && chmod 0770 "$HOME"
VOLUME /var/lib/lora-serving
USER 10001:0

EXPOSE 8000 8001 8002
STOPSIGNAL SIGTERM
# Loading a large model takes minutes.
HEALTHCHECK --start-period=15m --interval=10s --timeout=5s --retries=3 \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=4)"]
# NVIDIA's entrypoint checks the driver and then becomes the command.
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh", "python3", "-m", "tools", "serve", "--host", "0.0.0.0", "--config", "/etc/lora-serving/serving.yaml", "--state-dir", "/var/lib/lora-serving/state"]
