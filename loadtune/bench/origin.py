"""Who raised an error: a ``raise`` in somebody's Python, or PyTorch.

An error's text proves nothing about who wrote it: anybody may ``raise RuntimeError("CUDA out of memory")``, or quote
the words. PyTorch raises from C++, where the innermost Python frame is the user's as well, but stands at a call; so
it is the instruction that is looked at, and of a DataLoader worker's error, which arrives as text, the line.
"""

import dis
import re
from pathlib import Path
from types import TracebackType

import torch

_TORCH = str(Path(torch.__file__).parent)
_LAST_FRAME = re.compile(r'^  File "(?P<file>.+?)", line \d+.*\n    (?P<line>.*)', re.MULTILINE)


def raised_by_others(error: BaseException) -> bool:
    """Whether a ``raise`` outside PyTorch's own files made this error. Without a traceback: no."""
    text = str(error)
    if text.startswith("Caught ") and "Original Traceback" in text:
        return _raised_by_others_text(text)
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    return innermost is not None and _stands_at_raise(innermost) and not _is_torch(_file_of(innermost))


def _stands_at_raise(entry: TracebackType) -> bool:
    return dis.opname[entry.tb_frame.f_code.co_code[entry.tb_lasti]] == "RAISE_VARARGS"


def _file_of(entry: TracebackType) -> str:
    return entry.tb_frame.f_code.co_filename


def _raised_by_others_text(text: str) -> bool:
    frames = list(_LAST_FRAME.finditer(text))
    return bool(frames) and frames[-1]["line"].startswith("raise ") and not _is_torch(frames[-1]["file"])


def _is_torch(filename: str) -> bool:
    return filename.startswith(_TORCH)
