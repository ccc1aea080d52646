#!/usr/bin/env bash
# Measures programs on the NVIDIA GPU of a machine that has Python 3.11 or 3.12 with PyTorch, CUDA 13 with nvcc, and no network;
# where NETWORK is given, learns from them and tunes that network.
#
#   bench/gpu.sh WHEELS [DATA.tar.gz]
#
#   WHEELS       folder with the wheels of bench/gpu-requirements.txt (docs/devices.md has the command that gets them)
#   DATA.tar.gz  params.yaml and data/ to go on from: an earlier run's, or data/programs made under `tcl profile cuda` on
#                any machine; without it tasks and candidates are made here first, for which PyTorch needs transformers beside it
#
# Environment: OUT      where gpu-data.tar.gz is left, with params.yaml and all of data/ (default: ./gpu-data)
#              PROFILE  sizes: default or full (default: as in DATA's params.yaml, else the checkout's)
#              NETWORK  such as resnet-18: tuned in the end with what was learned; the result is left in OUT/tuned.  By a name PyTorch
#                       needs transformers beside it; a .pt2 or .onnx is named by its whole path
#              LIMIT_S  stop after so many seconds; the journal in the archive lets the next run go on from there
#              PYTHON   the Python that has PyTorch (default: python3)
set -euo pipefail

usage="usage: bench/gpu.sh WHEELS [DATA.tar.gz]"
wheels=$(realpath "${1:?$usage}")
from=${2:+$(realpath "$2")}
code=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${OUT:=gpu-data}"
out=$(realpath "$OUT")
work=$(mktemp -d)

keep() { # whatever happened: what was measured
    if [ -d "$work/project/data" ]; then tar -C "$work/project" -czf "$out/gpu-data.tar.gz" params.yaml data; fi
    rm -rf "$work"
}
trap keep EXIT
case "${NETWORK:-}" in
    "" | /*.pt2 | /*.onnx) ;;
    */* | *.pt2 | *.onnx) echo "gpu.sh: name the file $NETWORK by its whole path" >&2; exit 2 ;;
    *) "${PYTHON:-python3}" -c 'import transformers' 2> /dev/null || { echo "gpu.sh: $NETWORK is made by transformers, which this Python lacks" >&2; exit 2; } ;;
esac
trap 'exit 143' INT TERM

"${PYTHON:-python3}" -m venv --system-site-packages "$work/venv"
python=$work/venv/bin/python
"$python" -m pip install --quiet --no-index --find-links "$wheels" \
    -c "$code/constraints.txt" -r "$code/bench/gpu-requirements.txt"
export PYTHONPATH=$code PYTHONDONTWRITEBYTECODE=1

# CUDA's runtime, where only PyTorch's own packages or the toolkit have it.
libraries=$("$python" -c 'import glob, sys; print(":".join(d for p in sys.path for d in glob.glob(p + "/nvidia/*/lib")))')
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64${libraries:+:$libraries}

mkdir "$work/project" && cd "$work/project"
cp -r "$code/params.yaml" "$code/profiles" .
if [ -n "$from" ]; then tar -xzf "$from"; fi
tcl=("$python" -m tcl_core.cli)
if [ -n "${PROFILE:-}" ]; then "${tcl[@]}" profile "$PROFILE"; fi
if [ -z "$from" ]; then "${tcl[@]}" profile cuda; fi
"${tcl[@]}" platforms
if [ ! -f data/programs/pool/held_out/programs.parquet ]; then "${tcl[@]}" tasks && "${tcl[@]}" candidates; fi

run() { # a command of tcl, within what is left of LIMIT_S
    local limit=() status=0
    if [ -n "${LIMIT_S:-}" ]; then limit=(timeout --signal=TERM --kill-after=30 "$((LIMIT_S > SECONDS ? LIMIT_S - SECONDS : 1))"); fi
    "${limit[@]}" "${tcl[@]}" "$@" || status=$?
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        echo "stopped after $SECONDS s: what was measured is in $out/gpu-data.tar.gz; give it to the next run"
        exit 0
    fi
    if [ "$status" -ne 0 ]; then exit "$status"; fi
}

run collect
run holdout
if [ -n "${NETWORK:-}" ]; then
    run train
    run tune "$NETWORK" -p gpu --model data/models/gpu --overwrite --out "$out/tuned"
fi
echo "measured; the data set is $out/gpu-data.tar.gz"
