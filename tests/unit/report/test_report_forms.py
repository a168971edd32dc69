"""Forms of a winner: each says what was confirmed, in a shape that its reader takes."""

import pytest
from page_rig import golden, named

from loadtune import export
from loadtune.errors import UsageError


def test_an_unknown_form_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="format is 'yaml'; it must be python, pytorch or json"):
        export(golden(), "yaml")


@pytest.mark.parametrize("form", ["python", "pytorch"])
def test_no_name_gets_out_of_its_comment(form: str) -> None:
    text = export(named('x:y\nraise SystemExit("out")\r"""\\', golden()), form)
    compile(text, form, "exec")
    assert not any(line.startswith("raise") for line in text.splitlines())
