#!/usr/bin/env bash
# The oldest versions that loadtune takes: unit tests, the switching loader, tuning while training, and a short run. Takes some 15 minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
# shellcheck disable=SC1091
source "$work/venv/bin/activate"
pip install --quiet 'torch==2.6.*' 'torchvision==0.21.*' 'optuna==5.0.*' pytest pytest-timeout pytest-xdist hypothesis
pip install --quiet -e '.[vision]'
python -c 'import torch; assert torch.__version__.startswith("2.6."), torch.__version__'

pytest -q -n 2 tests/unit tests/property tests/integration/test_stream_ends.py tests/integration/test_stream_trouble.py \
  tests/integration/test_exec.py tests/integration/test_inflight_jobs.py
loadtune run --dataset FakeData --model resnet18 --image-size 32 --device cpu --time-budget 60 --out "$work/results"
