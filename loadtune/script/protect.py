"""A script that is started to be measured changes nothing that existed before, and no start sees what another wrote.

Overlays take what it writes. Where they cannot be mounted, Landlock lets it write to new folders alone. Which of the
two works is found by doing it. Writes to other machines cannot be held.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loadtune.errors import UsageError
from loadtune.script import launch
from loadtune.script.janitor import remove

_SYSTEM = ("/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/opt", "/sbin", "/snap", "/usr", "/var")
"""Folders that stay read-only unless one is named by an argument, or is the working folder."""
_SOCKETS = "/run"
"""Sockets of other programs work where it is read-only, but not through an overlay."""
_CACHES = ("~/.cache", "~/.nv", "~/.triton")
_CACHE_VARIABLES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_PATH = re.compile(r"(?<![\w.~/:])(?:~|\.\.?)?/[^\s\"'`,:;=<>|*?$(){}\[\]]+")
_MOST_TEXT_BYTES = 100_000
_PROBE = "import sys; open(sys.argv[1], 'x').close()"
_PROBE_S = 5.0


@dataclass(frozen=True)
class Protection:
    """What holds the script."""

    way: Literal["overlay", "landlock", "none"]
    text: str
    """One sentence for the user."""


def protection_here() -> Protection:
    """For scripts that are started in this process's folder. Raises UsageError: nothing protects here."""
    with tempfile.TemporaryDirectory(prefix="loadtune-") as scratch:
        found = find_way(Path(scratch))
    if found.way == "none":
        raise UsageError(
            f"{found.text} Run it where user namespaces or Landlock are allowed, or describe the job: "
            "loadtune run --dataset FILE.py:NAME --model FILE.py:NAME."
        )
    return found


def find_way(scratch: Path, cwd: Path | None = None) -> Protection:
    """The first way that works here, found by starting processes that write to ``cwd``. Takes under a second.

    ``scratch``: a folder on disk for what the script writes. Whether overlays work depends on its file system, too.
    """
    ways = (
        Protection(
            "overlay", "What the script writes goes to overlays and is thrown away; what existed stays as it is."
        ),
        Protection(
            "landlock", "The script can write to new temporary folders only, so what existed stays as it is (Landlock)."
        ),
    )
    refused = []
    for protection in ways:
        reason = _refusal(protection, scratch, cwd or Path.cwd())
        if reason is None:
            return protection
        refused.append(f"{protection.way}: {reason}")
    return Protection("none", f"Nothing keeps the script from changing files here ({'; '.join(refused)}).")


def command(
    protection: Protection, argv: Sequence[str], cwd: Path, scratch: Path, keep: Sequence[Path] = ()
) -> list[str]:
    """What starts the script so that it is protected; to be started in ``cwd``, with this process's environment.

    ``keep``: files, sockets and folders that stay as they are, and writable.
    """
    if protection.way == "none":
        return list(argv)
    layers = Path(os.path.realpath(scratch)) / "layers"
    layers.mkdir(exist_ok=True)
    kept = [os.path.realpath(path) for path in keep if path.exists()]
    if protection.way == "landlock":
        given: dict[str, object] = {"writable": kept, "temporary": f"{layers}/start/tmp"}
    else:
        folders, caches = covered(argv, cwd, os.environ)
        given = {"layers": str(layers), "folders": folders, "caches": caches, "keep": [*kept, *_sockets_of_others()]}
    plan = json.dumps({"way": protection.way, "cwd": str(cwd), "with": given})
    return [sys.executable, "-I", "-S", launch.__file__, plan, *argv]


def forget(scratch: Path, *, caches: bool = False) -> None:
    """Remove what the last start wrote; with ``caches`` what all did. Of its processes none may run any more."""
    remove(str(scratch / "layers" / ("" if caches else "start")))


def covered(argv: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Folders that the script may write to, and those of caches.

    The working folder, home, those for temporary files, those that arguments name; and where this user may write:
    those that variables or files among the arguments name, targets of links in the working folder, top folders, mounts.
    """
    home = os.path.expanduser("~")
    named = {str(cwd), home, "/tmp", "/var/tmp", tempfile.gettempdir()}
    texts = [*argv[1:], *environment.values()]
    for value in (value for word in argv[1:] for value in (word, word.partition("=")[2], word[2:])):  # -oDIR
        path = os.path.join(cwd, os.path.expanduser(value))
        if "/" in value or os.path.exists(path):
            named.add(path)
        with suppress(OSError):
            if os.path.isfile(path) and os.path.getsize(path) <= _MOST_TEXT_BYTES:
                texts.append(Path(path).read_text(errors="replace"))
    found = {os.path.join(cwd, os.path.expanduser(path)) for text in texts for path in _PATH.findall(text)}
    with suppress(OSError), os.scandir(cwd) as entries:
        found |= {entry.path for entry in entries if entry.is_symlink()}
    found |= {f"/{name}" for name in os.listdir("/")} | set(launch.mounts())
    variables = (environment[name] for name in _CACHE_VARIABLES if environment.get(name))
    folders = _folders(named)
    caches = {os.path.realpath(os.path.expanduser(path)) for path in (*_CACHES, *variables)} - folders
    writable = {
        each for each in _folders(found) if os.access(each, os.W_OK) and not _is_below(each, (*_SYSTEM, *caches))
    }
    return sorted(folders | writable), sorted(caches)


def _folders(paths: Iterable[str]) -> set[str]:
    """The nearest that exist."""
    found = set()
    for path in map(os.path.realpath, paths):
        while not os.path.isdir(path):
            path = os.path.dirname(path)
        found.add(path)
    return {each for each in found if each != "/" and not _is_below(each, (*launch.LEFT_ALONE, _SOCKETS))}


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(launch.below(path, each) for each in folders)


def _sockets_of_others() -> list[str]:
    """In /tmp: sockets and pipes, and the folder of CUDA's MPS, which makes new ones."""
    found = [
        path for pattern in ("*", "*/*") for path in Path("/tmp").glob(pattern) if path.is_socket() or path.is_fifo()
    ]
    service = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    return [*map(str, found), *([os.path.realpath(service)] if service.is_dir() else [])]


def _refusal(protection: Protection, scratch: Path, cwd: Path) -> str | None:
    """Why a way does not work; None: it does."""
    new = (cwd if os.access(cwd, os.W_OK) else scratch) / f".loadtune-{os.getpid()}"
    argv = command(protection, [sys.executable, "-I", "-S", "-c", _PROBE, str(new)], cwd, scratch)
    try:
        ended = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=_PROBE_S)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    finally:
        written = new.exists()
        new.unlink(missing_ok=True)
        forget(scratch)
    last = ended.stderr.strip().rpartition("\n")[2]
    held = ended.returncode == 0 if protection.way == "overlay" else "PermissionError" in last
    return (
        f"{new} was written"
        if written
        else None
        if held
        else last.removeprefix("loadtune: the script was not started: ")
    )
