"""Results that people keep, one of each version as it was first written, and the schema that describes them today.

The files in ``versions`` are never written anew: if one no longer reads, somebody's result no longer reads. The schema
follows the records: ``LOADTUNE_REGENERATE=1 pytest tests/golden``, and look at the difference.
"""

import json
import os
from pathlib import Path

import msgspec
import pytest

import loadtune
from loadtune.errors import ResultError
from loadtune.records import SCHEMA_VERSION, TuningResult
from loadtune.records.chosen import chosen_winner
from loadtune.report import schema
from loadtune.report.forms.write import FORMS, export
from loadtune.report.store import load_result

HERE = Path(__file__).parent
VERSIONS = sorted((HERE / "versions").glob("*.json"))


def test_every_version_is_kept() -> None:
    assert [path.stem for path in VERSIONS] == [str(number) for number in range(1, SCHEMA_VERSION + 1)]


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.stem)
def test_a_kept_version_reads_and_is_of_use(path: Path) -> None:
    result = load_result(path)
    assert str(result.schema_version) == path.stem
    assert chosen_winner(result).samples_per_s > 0
    with pytest.raises(ResultError, match="1 of its 2 runs failed"):  # its trial had; that ruled nothing out then
        chosen_winner(result, keep_batch_size=True)
    assert loadtune.compare(result, load_result(HERE)).ratio is not None
    assert all(export(result, form) for form in FORMS)


def test_the_shipped_schema_is_what_the_records_say() -> None:
    made = schema.made_schema()
    if os.environ.get("LOADTUNE_REGENERATE"):
        Path(schema.__file__).with_name(schema.SCHEMA_FILE).write_text(made, encoding="utf-8")
    assert schema.kept_schema() == made


def test_the_schema_names_every_field_that_is_written() -> None:
    written = json.loads((HERE / "result.json").read_text(encoding="utf-8"))
    described = json.loads(schema.kept_schema())["$defs"]["TuningResult"]
    assert set(written) == set(described["properties"])
    assert set(described["required"]) < set(written)
    with pytest.raises(msgspec.ValidationError, match="best"):
        msgspec.convert(written | {"best": 3}, TuningResult)


def test_the_kept_results_are_valid_by_the_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    checker = jsonschema.Draft202012Validator(json.loads(schema.kept_schema()))
    for path in (HERE / "result.json", *VERSIONS):
        checker.validate(json.loads(path.read_text(encoding="utf-8")))
    assert not checker.is_valid({"schema_version": "1"})
