"""A script that is started to be measured changes nothing that existed before, and no start sees what another wrote.

Overlays take what it writes. Where they cannot be mounted, Landlock lets it write to new folders alone. Which of the
two works is found by doing it. Where neither does, its Python code alone can be watched (`--unprotected`), and what it
writes stays. Writes to other machines cannot be held.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Literal

from loadtune.errors import UsageError
from loadtune.script import launch

_SYSTEM = ("/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/opt", "/sbin", "/snap", "/usr", "/var")
"""Folders that stay read-only unless one is named by an argument, or is the working folder."""
_SOCKETS = "/run"
"""Sockets of other programs work where it is read-only, but not through an overlay."""
_CACHES = ("~/.cache", "~/.nv", "~/.triton")
_CACHE_VARIABLES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_PROBE = "import sys; open(sys.argv[1], 'x').close()"


@dataclass(frozen=True)
class Protection:
    """What holds the script."""

    way: Literal["overlay", "landlock", "audit"]
    text: str
    """One sentence for the user."""
    began_s: float = field(default_factory=time.time)
    """Since the epoch: what is older existed before."""


_WAYS = (
    Protection("overlay", "What the script writes is thrown away at the end; files that existed stay as they are."),
    Protection(
        "landlock",
        "What existed stays as it is: the script fails where it writes outside of new temporary folders (Landlock).",
    ),
)


def protection_here(*, unprotected: bool = False) -> Protection:
    """For scripts that are started in this process's folder: the first way that works, found by starting processes that
    write to it. Takes under a second. ``unprotected``: where none does, Python code alone is watched.

    Raises UsageError: nothing protects here.
    """
    refused = []
    with tempfile.TemporaryDirectory(prefix="loadtune-") as scratch:
        for protection in _WAYS:
            if (reason := _refusal(protection, Path(scratch))) is None:
                return protection
            refused.append(f"{protection.way}: {reason}")
    nothing = f"Nothing keeps the script from changing files here ({'; '.join(refused)})."
    if unprotected:
        text = "Python code that would change an existing file is stopped; extensions and other programs are not."
        return Protection("audit", f"{nothing} {text}")
    raise UsageError(
        f"{nothing} Run it where user namespaces or Landlock are allowed. Or add --unprotected, and give the script a "
        "new output folder: then only its Python code is kept from changing existing files."
    )


def command(
    protection: Protection, argv: Sequence[str], cwd: Path, scratch: Path, keep: Sequence[Path] = ()
) -> list[str]:
    """What starts the script so that it is protected; to be started in ``cwd``, with this process's environment.

    ``keep``: files, sockets and folders that stay as they are, and writable.
    """
    if protection.way == "audit":
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
    launch.remove(str(scratch / "layers" / ("" if caches else "start")))


def covered(argv: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Folders that overlays cover, and those of caches: top folders and mounts that are not of the system; above these
    the working folder, home, those for temporary files, and those that arguments name.
    """
    named = {str(cwd), "~", "/tmp", "/var/tmp", tempfile.gettempdir()}
    for value in (value for word in argv[1:] for value in (word, word.partition("=")[2], word[2:])):  # -oDIR
        if "/" in value or os.path.exists(os.path.join(cwd, value)):
            named.add(value)
    found = {*(f"/{name}" for name in os.listdir("/")), *launch.mounts()}
    named |= {path for path in found if not any(launch.below(os.path.realpath(path), each) for each in _SYSTEM)}
    folders = set()
    for path in (os.path.realpath(os.path.join(cwd, os.path.expanduser(each))) for each in named):
        while not os.path.isdir(path):
            path = os.path.dirname(path)
        if path != "/" and not any(launch.below(path, each) for each in (*launch.LEFT_ALONE, _SOCKETS)):
            folders.add(path)
    return sorted(folders), sorted({*caches_of(environment)} - folders)


def caches_of(environment: Mapping[str, str]) -> list[str]:
    variables = (environment[name] for name in _CACHE_VARIABLES if environment.get(name))
    return sorted({os.path.realpath(os.path.expanduser(path)) for path in (*_CACHES, *variables)})


def _sockets_of_others() -> list[str]:
    """In /tmp: sockets and pipes, and the folder of CUDA's MPS, which makes new ones."""
    there = (path for pattern in ("/tmp/*", "/tmp/*/*") for path in glob(pattern, include_hidden=True))
    found = [path for path in there if Path(path).is_socket()]  # others come and go meanwhile
    service = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    return [*found, *([os.path.realpath(service)] if service.is_dir() else [])]


def _refusal(protection: Protection, scratch: Path) -> str | None:
    """Why a way does not work; None: it does."""
    cwd = Path.cwd()
    new = (cwd if os.access(cwd, os.W_OK) else scratch) / f".loadtune-{os.getpid()}"
    argv = command(protection, [sys.executable, "-I", "-S", "-c", _PROBE, str(new)], cwd, scratch)
    try:
        ended = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=5.0)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    finally:
        written = new.exists()
        new.unlink(missing_ok=True)
        forget(scratch)
    last = ended.stderr.strip().rpartition("\n")[2]
    held = ended.returncode == 0 if protection.way == "overlay" else "PermissionError" in last
    if written:
        return f"{new} was written"
    return None if held else last.removeprefix("loadtune: the script was not started: ")
