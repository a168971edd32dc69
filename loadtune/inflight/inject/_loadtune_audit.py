"""For ``--unprotected``: PermissionError where the script's Python code would change a file that existed before.
Programs that it starts, and extensions that write by themselves, are not seen. Imports nothing of loadtune.
"""

import os
import stat
import sys
from functools import wraps
from typing import Any

_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND
_WRITERS = (("torch.serialization", "_open_zipfile_writer"), ("safetensors.torch", "serialize_file"))
"""Of C++ and Rust, which are given a file's name."""
_began_s, _free = 0.0, list[str]()


def install(began_s: float, free: list[str]) -> None:
    """``began_s``: since the epoch; files that are newer are the script's own. ``free``: folders of caches."""
    global _began_s, _free
    _began_s, _free = began_s, free
    sys.addaudithook(_hook)


def watch_writers() -> None:
    """Of the modules that are imported by now."""
    for module, name in _WRITERS:
        if (write := getattr(sys.modules.get(module), name, None)) is not None:

            @wraps(write)
            def watched(*given: Any, _write: Any = write, **named: Any) -> Any:
                for path in (*given, *named.values()):
                    if isinstance(path, str | os.PathLike):
                        _check(path)
                return _write(*given, **named)

            setattr(sys.modules[module], name, watched)


def _hook(event: str, given: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(given[2], int) and given[2] & _CHANGES:
        _check(given[0])
    elif event in ("os.remove", "os.rmdir"):
        _check(*given)
    elif event == "os.rename":
        _check(given[0], given[2])
        _check(given[1], given[3])
    elif event == "os.truncate":
        _check(given[0])


def _check(path: Any, folder: int = -1) -> None:
    try:
        path = os.path.join(f"/proc/self/fd/{folder}" if folder >= 0 else "", os.fsdecode(path))
        status, where = os.stat(path), os.path.realpath(path)
    except (OSError, TypeError):  # there is none, or it is open already
        return
    is_kept = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    if is_kept and status.st_ctime < _began_s and not any(where.startswith(f"{each}/") for each in _free):
        raise PermissionError(f"loadtune: {where} existed before this run; give the script a new output folder")
