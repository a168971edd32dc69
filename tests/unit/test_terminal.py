"""What reaches a terminal of any width and any locale."""

import io
import re
from pathlib import Path

import pytest
from page_rig import golden
from typer.testing import CliRunner

from loadtune.cli import app
from loadtune.report.store import write_result
from loadtune.report.text import summary_text
from loadtune.report.view import summary
from loadtune.terminal import print_whatever_the_locale, show


def shown(monkeypatch: pytest.MonkeyPatch, width: int) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = io.StringIO()
    show(summary_text(summary(golden())), stream)
    return stream.getvalue()


@pytest.mark.parametrize("width", [40, 60, 72, 80, 200])
def test_no_word_and_no_line_of_code_is_cut_at_any_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    text = shown(monkeypatch, width)
    assert "…" not in text
    remedies = summary(golden()).remedies
    assert remedies is not None
    code = [line for section in (*summary(golden()).code, *remedies.code) for line in section.lines]
    code += [f"# {one.title}" for one in remedies.code]
    assert set(code) <= set(text.split("\n"))
    prose = [line for line in text.split("\n") if line not in code]
    assert max(map(len, prose)) <= width


def test_every_figure_is_there_where_no_table_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.sub(r"\s", "", shown(monkeypatch, 40))
    view = summary(golden())
    cells = [cell for table in (view.figures, view.ceilings) for row in table.rows for cell in row]
    cells += [cell for row in view.curve.rows for cell in (*row.cells, row.mark)]
    assert [cell for cell in cells if re.sub(r"\s", "", cell) not in found] == []


@pytest.mark.parametrize(("encoding", "said"), [("ascii", "2.50x"), ("latin-1", "2.50×"), ("utf-8", "2.50×")])
def test_a_locale_without_our_signs_gets_plainer_ones(encoding: str, said: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_whatever_the_locale(stream)
    show(summary_text(summary(golden())), stream)
    text = stream.buffer.getvalue().decode(encoding)
    assert said in text
    assert "?" not in text


def test_json_is_utf_8_in_every_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_result(golden(), tmp_path)
    ended = CliRunner(charset="utf-8").invoke(app, ["compare", str(tmp_path), str(tmp_path), "--json"])
    assert ended.stdout_bytes.decode("utf-8").startswith("{\n")
