"""Scalars of a result for TensorBoard. In: a result and a folder. Out: event files, written by torch's own writer.

Apart from the forms that are text, because the writer is a part of torch, which this side never imports: a child
process of `loadtune.event_files` writes what it is told.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from loadtune.errors import ResultError, UsageError
from loadtune.records import TuningResult
from loadtune.report.forms.trackers import scalars


def export_tensorboard(result: TuningResult, folder: str | os.PathLike[str]) -> Path:
    """Write one curve a figure, over the trials' numbers, into `folder`; ``tensorboard --logdir`` shows it.

    Raises UsageError where the tensorboard package is missing or the folder cannot be used, ResultError for a result
    without a measured trial.
    """
    path = Path(folder)
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            "The tensorboard package is not installed, and torch's writer needs it. Install it with: pip install"
            " tensorboard"
        )
    if path.exists() and not path.is_dir():
        raise UsageError(f"--out {path} is a file; event files take a folder. Name one, or a free path.")
    points = scalars(result)
    if not points:
        raise ResultError(f"The run of {result.created} measured no trial, so there is nothing to draw. Name another.")
    ended = subprocess.run(
        [sys.executable, "-m", "loadtune.event_files", str(path)],
        input=json.dumps(points),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UsageError(f"--out {path}: no event files could be written there ({last}). Name another folder.")
    return path
