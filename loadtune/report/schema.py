"""JSON Schema of ``result.json``, for whoever reads results without loadtune. In: nothing. Out: the schema as text.

It is generated from the records and kept beside this file, so that it can be had without Python; a test holds the two
together.
"""

from importlib.resources import files

import msgspec

from loadtune.records import SCHEMA_VERSION, TuningResult
from loadtune.report.store import as_json

SCHEMA_FILE = "result.schema.json"


def kept_schema() -> str:
    """As it is shipped: draft 2020-12."""
    return files("loadtune.report").joinpath(SCHEMA_FILE).read_text(encoding="utf-8")


def made_schema() -> str:
    """As the records say it now."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"loadtune's result.json, schema_version {SCHEMA_VERSION}",
    }
    return as_json(head | msgspec.json.schema(TuningResult)).decode()
