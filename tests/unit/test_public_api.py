"""What ``import loadtune`` offers, and what it costs."""

import subprocess
import sys

import pytest

import loadtune


def in_fresh_python(code: str) -> str:
    """This process has torch loaded already, for other tests."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_importing_loads_nothing_heavy() -> None:
    loaded = in_fresh_python("import sys, loadtune; dir(loadtune); print(*sys.modules)").split()
    heavy = {"torch", "torchvision", "optuna", "scipy", "numpy", "rich", "typer", "msgspec", "psutil", "cloudpickle"}
    assert not heavy & set(loaded)


def test_reading_a_result_or_naming_a_model_loads_neither_torch_nor_optuna() -> None:
    code = "import sys, loadtune; loadtune.load_result, loadtune.best_loader_kwargs; print(*sys.modules)"
    assert not {"torch", "optuna", "scipy"} & set(in_fresh_python(code).split())
    code = "import sys, loadtune; loadtune.find_batch_size; print(*sys.modules)"
    assert not {"torch", "torchvision", "optuna", "cloudpickle"} & set(in_fresh_python(code).split())


@pytest.mark.parametrize("name", loadtune.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(loadtune, name) is not None
    assert name in dir(loadtune)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tunes'"):
        _ = loadtune.tunes  # type: ignore[attr-defined]
