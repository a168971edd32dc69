"""Starts a script so that the kernel keeps it from changing what exists: ``python -I -S launch.py PLAN COMMAND...``.
Tidies up after it where nobody else does: ``python -I -S launch.py FOLDER``. Imports nothing of loadtune.

The first process becomes the script: same process id, folder, environment and open files. Its mounts are those of a
mount namespace of its own: they end with the last process in it.
"""

import ctypes
import json
import os
import shutil
import signal
import struct
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

NOT_STARTED = 125
"""Exit code where the script was not started; standard error has the reason."""
LEFT_ALONE = ("/dev", "/proc", "/sys")
"""What is in these folders are no files on a disk: the script may write there as ever."""

_NEW_MOUNTS, _NEW_USERS = 0x20000, 0x10000000
_READ_ONLY, _BIND, _RECURSIVE, _PRIVATE = 1, 1 << 12, 1 << 14, 1 << 18
_MOUNT_SETATTR, _CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 442, 444, 445, 446  # the same on all architectures
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_WRITES = _WRITE_FILE | _TRUNCATE | sum(1 << bit for bit in range(4, 14))  # the others make, remove and move files
_PATIENCE_S, _TIDYING_S = 30.0, 1.0
"""For the script's processes in all; and for those to tidy up that notice themselves that the controller is gone."""
_libc = ctypes.CDLL(None, use_errno=True)


def below(path: str, folder: str) -> bool:
    """Whether it is that folder, or in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def mounts() -> list[str]:
    """Where file systems are mounted, parents first, without those below `LEFT_ALONE`."""
    with open("/proc/self/mountinfo", "rb") as lines:
        paths = {os.fsdecode(line.split()[4].decode("unicode_escape").encode("latin-1")) for line in lines}
    return sorted(path for path in paths if not any(below(path, left) for left in LEFT_ALONE))


def cover(layers: str, folders: list[str], caches: list[str], keep: list[str]) -> None:
    """All becomes read-only but `keep`; overlays, with upper layers in `layers`, take what is written to the folders.

    The upper layers of caches are found again at the next start. All paths are absolute, without symbolic links.
    """
    other_users = _enter_namespace()
    _call("mount", None, "/", None, _RECURSIVE | _PRIVATE, None)
    mounted = mounts()
    if "/" not in mounted:
        raise OSError("the root folder is not a mount")
    for path in mounted:
        with suppress(PermissionError, FileNotFoundError, NotADirectoryError):  # the script cannot reach it either
            _set_read_only(path, True)
    for path in (layers, *keep):
        with suppress(FileNotFoundError):  # a socket that is gone
            _call("mount", path, path, None, _BIND, None)
            with suppress(PermissionError):  # it was read-only before
                _set_read_only(path, False)
    # Descriptors see what lies below the overlays, and their names need no escapes among the options of a mount.
    base, opened = _open(layers), _opened((*mounted, *folders, *caches, *keep))
    for path in sorted({*folders, *caches}):
        if any(below(path, each) for each in keep):
            continue
        try:
            _mount_overlay(base, opened.get(path), path, path in caches, other_users)
        except OSError:  # of a file system that cannot be below an overlay: it stays read-only
            continue
        for each in (*mounted, *keep):
            if each != path and below(each, path) and each in opened:
                with suppress(FileNotFoundError):
                    _call("mount", f"/proc/self/fd/{opened[each]}", each, None, _BIND, None)


def restrict(writable: list[str], temporary: str) -> None:
    """Landlock: files can be made, changed and removed below these paths alone. All can be read and executed."""
    if (version := _call("syscall", _CREATE_RULESET, None, 0, 1)) < 3:
        raise OSError(f"version {version} does not keep files from being truncated")
    ruleset = _call("syscall", _CREATE_RULESET, struct.pack("=Q", _WRITES), 8, 0)
    os.makedirs(temporary, exist_ok=True)
    for path in (*LEFT_ALONE, *writable, temporary):
        rights = _WRITES if os.path.isdir(path) else _WRITE_FILE | _TRUNCATE
        _call("syscall", _ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, _open(path)), 0)
    _call("prctl", 38, 1, 0, 0, 0)  # no new privileges
    _call("syscall", _RESTRICT_SELF, ruleset, 0)
    os.environ.update(dict.fromkeys(("TMPDIR", "TEMP", "TMP"), temporary))


def _enter_namespace() -> bool:
    """Whether it took a user namespace, in which other users and groups do not exist."""
    with suppress(OSError):
        _call("unshare", _NEW_MOUNTS)
        return False
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _NEW_MOUNTS | _NEW_USERS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return True


def _mount_overlay(base: int, lower: int | None, path: str, is_cache: bool, other_users: bool) -> None:
    """Over a folder; over an empty one where a cache does not exist yet."""
    name, start = quote(path, safe=""), f"/proc/self/fd/{base}/start/{os.getpid()}"
    upper = f"/proc/self/fd/{base}/caches/{name}" if is_cache else f"{start}/upper/{name}"
    moving, empty = f"{start}/moving/{name}", f"{start}/empty"
    for folder in (upper, moving, empty):
        os.makedirs(folder, exist_ok=True)
    if lower is None:
        os.makedirs(path)  # in the layer of the folder around it
    else:
        status = os.fstat(lower)
        os.chmod(upper, status.st_mode & 0o7777)
        if not other_users:
            os.chown(upper, status.st_uid, status.st_gid)
    layers = f"lowerdir={empty if lower is None else f'/proc/self/fd/{lower}'},upperdir={upper},workdir={moving}"
    kind = "userxattr" if other_users else "redirect_dir=on"
    _call("mount", "overlay", path, "overlay", 0, f"{layers},volatile,{kind}")


def _set_read_only(path: str, read_only: bool) -> None:
    attributes = struct.pack("=4Q", _READ_ONLY * read_only, _READ_ONLY * (not read_only), 0, 0)
    _call("syscall", _MOUNT_SETATTR, -100, path, 0, attributes, len(attributes))


def _opened(paths: Iterable[str]) -> dict[str, int]:
    """Those that there are, and that this user may reach."""
    found = {}
    for path in paths:
        with suppress(OSError):
            found[path] = _open(path)
    return found


def _open(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _call(name: str, *arguments: str | bytes | int | None) -> int:
    """A function of the C library."""
    answer: int = getattr(_libc, name)(*(os.fsencode(each) if isinstance(each, str) else each for each in arguments))
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)} ({name})")
    return answer


def processes_of(folder: str) -> set[int]:
    """Whose environment names this folder, whoever is their parent now."""
    found = set[int]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it is gone, or of another user
            if os.fsencode(folder) in (process / "environ").read_bytes():
                found.add(int(process.name))
    return found


def remove(folder: str) -> bool:
    """Whether it is gone. In an overlay's folders are some that nobody may read."""
    for inside, names, _ in os.walk(folder):  # from the top down
        for path in (os.path.join(inside, name) for name in names):
            if not os.path.islink(path):
                with suppress(FileNotFoundError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
    return not os.path.exists(folder)


def tidy(folder: str) -> None:
    """Once the controller is gone, which holds our standard input open: end what runs of the script, and remove its
    folder. A script cannot remove it, as it is a mount there."""
    if sys.stdin.buffer.read():  # the controller does it itself
        return
    until = time.monotonic() + _PATIENCE_S
    time.sleep(_TIDYING_S)
    while time.monotonic() < until:
        for process in (left := processes_of(folder)):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if not left and remove(folder):
            break
        time.sleep(0.1)


def start(plan: dict[str, Any], argv: list[str]) -> None:
    try:
        if plan["way"] == "overlay":
            cover(**plan["with"])
        else:
            restrict(**plan["with"])
        os.chdir(plan["cwd"])  # again: an overlay may be above it now
    except OSError as error:
        print(f"loadtune: the script was not started: {error.strerror or error}", file=sys.stderr)
        sys.exit(NOT_STARTED)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the script would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606
    except OSError as error:
        print(f"loadtune: {argv[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        tidy(sys.argv[1])
    else:
        start(json.loads(sys.argv[1]), sys.argv[2:])
