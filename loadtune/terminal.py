"""What rich renders, as lines on a stream of ours: how commands show tables. rich is loaded on first use."""

from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType


def show(content: "RenderableType", stream: TextIO) -> None:
    from rich.console import Console

    console = Console(file=stream, highlight=False)
    with console.capture() as capture:  # written by us: rich would end the process itself where the reader went away
        console.print(content)
    stream.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())  # tables are padded with spaces
    stream.flush()
