"""A whole script under the tracer, run as ``python script.py args`` would run it."""

import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from loadtune.errors import UsageError
from loadtune.footprint.trace.files import Only
from loadtune.footprint.trace.tracing import trace_memory
from loadtune.records.trace import MemoryTrace


def run_traced(script: Path, args: list[str], only: Only = None) -> MemoryTrace:
    """Run ``script`` with ``args`` as ``__main__``; what ends it, an exception or `SystemExit`, stands in the record.

    Nothing is raised for it and nothing printed: ``error`` is the user's traceback, ``exit_code`` what python would
    have ended with. Raises UsageError where there is no such script.
    """
    if not script.is_file():
        raise UsageError(f"{script}: no such script. Give the path of a Python file.")
    trace = trace_memory(only=only)
    error, exit_code = None, 0
    with _as_main(script, args):
        try:
            with trace:
                runpy.run_path(str(script), run_name="__main__")
        except SystemExit as ending:
            error, exit_code = _exit(ending)
        except BaseException as raised:  # Ctrl-C too: what was traced until then is what was asked for
            error, exit_code = _users_traceback(raised, script), 130 if isinstance(raised, KeyboardInterrupt) else 1
    return replace(trace.record, error=error, exit_code=exit_code)


@contextmanager
def _as_main(script: Path, args: list[str]) -> Iterator[None]:
    argv, path = sys.argv[:], sys.path[:]
    sys.argv[:] = [str(script), *args]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv[:], sys.path[:] = argv, path


def _exit(ending: SystemExit) -> tuple[str | None, int]:
    """As python does: None is 0, a number itself, anything else is shown and means 1."""
    if ending.code is None or isinstance(ending.code, int):
        return None, ending.code or 0
    return str(ending.code), 1


def _users_traceback(error: BaseException, script: Path) -> str:
    """From the script's own first frame on; a script that does not compile has none."""
    report = traceback.TracebackException.from_exception(error)
    files = [frame.filename for frame in report.stack]
    first = files.index(str(script)) if str(script) in files else len(files)
    report.stack = traceback.StackSummary.from_list(report.stack[first:])
    return "".join(report.format())
