# fedptr with Flower, for the server and the nodes of a federation; examples/two_hospitals/compose.yaml uses it.
#
#   docker build -t fedptr .
#
# PyTorch from a package index comes with CUDA and is gigabytes large. To take PyTorch for CPUs, name the index that has it:
#   docker build -t fedptr --build-arg PIP_EXTRA_INDEX_URL=… .
FROM python:3.11-slim

# The compiler is for convnet.cpp, which the installation below compiles; any version will do.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*

# Volumes that are mounted at these folders belong to the user, too.
RUN useradd --create-home --uid 1000 fedptr \
 && mkdir /node /server /north /south \
 && chown fedptr:fedptr /node /server /north /south

WORKDIR /opt/fedptr
ARG PIP_EXTRA_INDEX_URL=""
ARG EXTRAS=flower
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY fedptr fedptr
RUN PIP_EXTRA_INDEX_URL="$PIP_EXTRA_INDEX_URL" pip install --no-cache-dir -c constraints.txt ".[$EXTRAS]"
COPY examples examples

USER 1000
CMD ["fedptr", "--help"]
