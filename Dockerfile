# Images of the two environments. The set-up step is the script that sets up any machine.
#
#   docker build --target cpu --tag openclaw-rl:cpu .
#   docker build --target gpu --tag openclaw-rl:gpu .
#   docker run --rm openclaw-rl:cpu                                          # the demo
#   docker run --rm --gpus all --shm-size 16g --network host \
#       -v /srv/models:/home/openclaw/openclaw-rl/models openclaw-rl:gpu     # what this machine can run

FROM python:3.11-slim-bookworm AS cpu
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates curl git \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home openclaw \
    && install --directory --owner openclaw --group openclaw /home/openclaw/openclaw-rl
USER openclaw
WORKDIR /home/openclaw/openclaw-rl
ENV PIP_NO_CACHE_DIR=1
# The environment depends on these two folders only: other changes keep this layer.
COPY --chown=openclaw:openclaw requirements requirements
COPY --chown=openclaw:openclaw scripts scripts
RUN scripts/setup.sh cpu
COPY --chown=openclaw:openclaw . .
# Volumes are mounted here; a folder that Docker makes would be root's.
RUN mkdir runs models
EXPOSE 30000
CMD ["bash", "openclaw-combine/run_tiny_cpu.sh"]

# The toolkit stays in the image: SGLang and FlashInfer compile kernels at their first use.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS gpu
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        ca-certificates curl g++ git libnuma1 python3.12 python3.12-dev python3.12-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home openclaw \
    && install --directory --owner openclaw --group openclaw /home/openclaw/openclaw-rl
USER openclaw
WORKDIR /home/openclaw/openclaw-rl
ENV PIP_NO_CACHE_DIR=1
COPY --chown=openclaw:openclaw requirements requirements
COPY --chown=openclaw:openclaw scripts scripts
RUN scripts/setup.sh gpu --skip-checks
COPY --chown=openclaw:openclaw . .
# Volumes are mounted here; a folder that Docker makes would be root's.
RUN mkdir runs models
EXPOSE 30000
CMD ["bash", "scripts/setup.sh", "doctor"]
