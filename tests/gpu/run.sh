#!/usr/bin/env bash
# Correctness of every shipped rule and timings of its Triton kernels on this machine's GPU, in one
# table and under eight minutes; against flash-linear-attention where that can be imported.
#
#   tests/gpu/run.sh [--rules NAME,...] [--budget SECONDS] [--jobs N] [--json FILE]
#
# Uses .venv/bin/python, or $PYTHON, which needs torch with CUDA, Triton and what fwgen depends on.
# Exits 1 when a result is wrong or a rule did not get its turn, 3 without a CUDA device.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
if ! command -v "$python" >/dev/null; then
    python=python3
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -W ignore tests/gpu/drive.py "$@"
