"""The README's pictures are those of the data beside them."""

import pytest
from pictures import IMAGES, chart, recording


@pytest.mark.parametrize(("draw", "source"), [(recording, "exec.jsonl"), (chart, "chart.json")])
def test_a_picture_is_that_of_its_data(draw, source: str) -> None:
    drawn = draw((IMAGES / source).read_text("utf-8"))
    assert (IMAGES / source).with_suffix(".svg").read_text("utf-8") == drawn
