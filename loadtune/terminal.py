"""What rich renders, as lines on a stream of ours: how commands show tables. rich is loaded on first use."""

import os
from contextlib import suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType


def show(content: "RenderableType", stream: TextIO) -> None:
    """Tables keep to the stream's width; code, which does not wrap, runs over it rather than being cut."""
    from rich.console import Console

    console = Console(file=stream, highlight=False)
    with console.capture() as capture:  # written by us: rich would end the process itself where the reader went away
        console.print(content, crop=False)
    stream.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())  # tables are padded with spaces
    stream.flush()


class LastingStream(TextIOWrapper):
    """Once its disk is full or its reader is gone, what is written goes nowhere. Not for a buffered file."""

    lost: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self.lost = error
            to_nowhere(self)
            return len(text)


def to_nowhere(stream: TextIO) -> None:
    """Python flushes its streams once more on its way out; into nothing, that is quiet."""
    with suppress(OSError):  # a stream without a file descriptor has nothing to complain of
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
