# Runtime for collection, training and orchestration: the same steps as `make setup`, then the whole pipeline.
#   docker build -t tcl .
#   docker run --name tcl -v tcl-data:/tcl/data -v tcl-cache:/tcl/.dvc/cache -v tcl-registry:/tcl/registry -v tcl-measuring:/tmp tcl
#                                   (the last volume has the lock by which one of this machine's containers measures at a time)
#   docker start -a tcl             once more: dvc.lock and params.yaml lie in the container, which should therefore stay
FROM python:3.11-slim

# TVM links the programs that it builds with the system's C++ compiler.
RUN apt-get update && apt-get install -y --no-install-recommends g++ git make && rm -rf /var/lib/apt/lists/*

WORKDIR /tcl
COPY Makefile pyproject.toml constraints.txt ./
COPY .dvc .dvc
COPY tcl_core/__init__.py tcl_core/
RUN touch README.md && make setup EXTRAS=tvm,trees,pipeline,dev,postgres
COPY . .
RUN touch .venv/.installed

ENV PATH=/tcl/.venv/bin:$PATH \
    DO_NOT_TRACK=1 \
    MLFLOW_DISABLE_TELEMETRY=true \
    MLFLOW_TRACKING_URI=sqlite:////tcl/registry/mlflow.db
# Nobody is root here: the code and the packages stay root's, and what is written lies in folders of the user's own, which
# volumes that are new take over with their owner.
RUN useradd --create-home --uid 1000 tcl \
 && mkdir -p /state data/tuned logs networks registry .dvc/cache .dvc/tmp .prefect mlruns \
 && chown tcl:tcl . params.yaml .dvc /state \
 && chown -R tcl:tcl data logs networks registry .dvc/cache .dvc/tmp .prefect mlruns \
 && mkdir /shipped && cp -a data/prepared data/reference data/registers data/searched data/variants /shipped
USER tcl
# A volume keeps the data sets of the image that it was made with, so this one's take their place; a project that is mounted has its own.
ENTRYPOINT ["/bin/sh", "-c", "[ \"$PWD\" != /tcl ] || [ -e .git ] || { mkdir -p data/tuned && cp -a /shipped/. data/; } || echo 'the data sets in data/ may be of an older image' >&2; exec \"$@\"", "tcl"]
CMD ["make", "run"]
