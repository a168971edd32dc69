"""The README's pictures are those of the data beside them."""

import json
from xml.etree import ElementTree

import pytest
from pictures import IMAGES, chart, recording


@pytest.mark.parametrize(("draw", "source"), [(recording, "exec.jsonl"), (chart, "chart.json")])
def test_a_picture_is_that_of_its_data(draw, source: str) -> None:
    drawn = draw((IMAGES / source).read_text("utf-8"))
    assert (IMAGES / source).with_suffix(".svg").read_text("utf-8") == drawn


def test_a_recording_has_every_line_and_its_second() -> None:
    data = [[0.0, "$ a <b>.py"], [1.2, "epoch & more"], [0.0, "$ x"], [61.4, "loadtune: " + "word " * 40]]
    words = list(ElementTree.fromstring(recording("\n".join(map(json.dumps, data)))).itertext())
    assert {"$ a <b>.py", "1 s", "epoch & more", "$ x", "61 s"} <= set(words)
    assert " ".join(words).count("word") == 40
