"""Pages on disk. In: results and where the file goes. Out: one HTML file, written whole or not at all."""

from collections.abc import Sequence
from pathlib import Path

from loadtune.errors import ResultError
from loadtune.records import TuningResult
from loadtune.report.page.board import board_view
from loadtune.report.page.render import rendered
from loadtune.report.page.view import page_view
from loadtune.report.store import load_result, result_files, write_whole

PAGE_FILE = "report.html"


def write_page(result: TuningResult, path: Path) -> Path:
    """One run. Raises ResultError where it cannot be written, or plotly.js is not installed."""
    view = page_view(result)
    figures = [figure for chapter in view.chapters for figure in chapter.figures]
    return write_whole(path, rendered("page.html.jinja", view, figures).encode())


def write_board(folders: Sequence[Path], path: Path) -> Path:
    """Every result below these folders on one page, which names those that cannot be read. Raises as `write_page`."""
    results: list[TuningResult] = []
    unread: list[str] = []
    for file in sorted({file.resolve() for folder in folders for file in result_files(folder)}):
        try:
            results.append(load_result(file))
        except ResultError as error:
            unread.append(str(error))
    view = board_view(results, unread)
    return write_whole(path, rendered("board.html.jinja", view, [view.trend]).encode())
