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
        write = getattr(sys.modules.get(module), name, None)
        if write is not None and not hasattr(write, "__wrapped__"):

            @wraps(write)
            def watched(*given: Any, _write: Any = write, **named: Any) -> Any:
                for path in (*given, *named.values()):
                    if isinstance(path, str | os.PathLike):
                        _check(path)
                return _write(*given, **named)

            setattr(sys.modules[module], name, watched)


def _hook(event: str, given: tuple[Any, ...]) -> None:
    if event in ("import", "open"):
        watch_writers()
    if event == "open" and isinstance(given[2], int) and given[2] & _CHANGES:
        _check(given[0])
    elif event == "os.remove":
        _check(*given, follows=False)
    elif event == "os.rename":
        _check(given[0], given[2], follows=False)
        _check(given[1], given[3], follows=False)
    elif event in ("os.truncate", "os.utime", "os.chmod", "os.chown", "os.setxattr", "os.link"):
        _check(given[0])  # their times tell which files are old, so these must stay


def _check(path: Any, folder: int = -1, *, follows: bool = True) -> None:
    try:
        path = os.path.join(f"/proc/self/fd/{folder}" if folder >= 0 else "", os.fsdecode(path))
        where, is_old = os.path.realpath(path), _is_old(path, follows)
    except (OSError, TypeError):  # there is none, or it is open already
        return
    if is_old and not any(where.startswith(f"{each}/") for each in _free):
        raise PermissionError(f"loadtune: {where} existed before this run; give the script a new output folder")


def _is_old(path: str, follows: bool) -> bool:
    """Of a folder: whether a file in it is."""
    status = os.stat(path, follow_symlinks=follows)
    if stat.S_ISDIR(status.st_mode):
        inside = (os.path.join(at, name) for at, _, names in os.walk(path) for name in names)
        return any(_is_old(each, False) for each in inside)
    return (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)) and status.st_ctime < _began_s
