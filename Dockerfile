# envsdk with everything that `pip install envsdk[cluster]` brings, for a Ray cluster or one machine:
#
#     docker build --tag envsdk .                                       # for GPUs
#     docker build --tag envsdk --build-arg TORCH_INDEX=URL .           # URL: torch's index of CPU builds
#     docker run --rm --volume "$PWD/runs:/runs" envsdk train agentic_async.yaml output_dir=/runs
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}

ARG EXTRAS=cluster,postgres,endpoint,tools,rlvr,swe
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:$PATH

RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends bubblewrap ca-certificates git mount \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv

# The packages come before the sources, so that a change of the sources installs only these again.
WORKDIR /opt/envsdk
COPY constraints.txt constraints-cluster.txt ./
# torch comes alone: resolved together with the rest it may come as its newest GPU build.
RUN pip install ${TORCH_INDEX:+--index-url ${TORCH_INDEX}} -c constraints.txt "$(grep -x 'torch==.*' constraints.txt)"
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY envsdk ./envsdk
COPY envs ./envs
COPY managers ./managers
COPY trainers ./trainers
COPY examples ./examples
RUN pip install -c constraints.txt -c constraints-cluster.txt ".[${EXTRAS}]"

# An ordinary user: environments run what a model wrote.
RUN useradd --create-home --uid 1000 envsdk && mkdir /runs && chown envsdk: /runs
USER envsdk
WORKDIR /home/envsdk
ENTRYPOINT ["envsdk"]
CMD ["--help"]
