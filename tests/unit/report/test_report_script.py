"""What to type into a script: arguments that hold a setting in use, else the line of the DataLoader, then precision."""

import re
from dataclasses import replace

import pytest
from page_rig import config, of_script

from loadtune import export
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.report.forms import script_lines, with_arguments
from loadtune.report.page import page_view

OWN = LoaderConfig(batch_size=64, num_workers=4, persistent_workers=False)
NUMBERS = {"batch_size": (64, 256), "num_workers": (4, 16)}


def lines(command: str, answer: TrialConfig, **facts: object) -> list[str]:
    return script_lines(of_script(command, **({"own_loader": OWN} | facts)), answer)


@pytest.mark.parametrize(
    "arguments",
    [
        "--batch-size 64 --workers 4",
        "-b 64 -j4 data",
        "--batch_size=64 --num-workers=4 --val-batch-size 65",
        "--per_device_train_batch_size 64 --dataloader_num_workers 4",
        "data.batch_size=64 +loader.num_workers=4",
        "--data.init_args.num_workers 4 --bs 64 --batch-size 128",
    ],
)
def test_an_argument_that_holds_a_setting_in_use_gets_the_new_value(arguments: str) -> None:
    typed, said = with_arguments(["python", "train.py", *arguments.split()], NUMBERS)
    after = re.sub(r"(?<=[ =j])4\b", "16", re.sub(r"\b64\b", "256", arguments))
    assert (typed, said) == ([f"python train.py {after}"], NUMBERS.keys())


@pytest.mark.parametrize("words", ["train.py --epochs 64 --nw", "-b 64 train.py --batch-size 128", "train.py 64 4 b j"])
def test_other_arguments_stay(words: str) -> None:
    assert with_arguments(["python", *words.split()], NUMBERS) == ([], set())


def test_a_long_command_is_broken_between_words() -> None:
    words = ["python", "train.py", "--name", "two words", "-b", "64", *(f"--option-{n}" for n in range(20))]
    typed, _ = with_arguments(words, NUMBERS)
    assert "--name 'two words' -b 256" in typed[0]
    assert [line.endswith(" \\") for line in typed] == [True, True, False]
    assert max(map(len, typed)) <= 100
    assert with_arguments([*words, *words], NUMBERS)[0] == ["In your command: -b 256 -b 256"]
    assert with_arguments(["python", "t.py", "-b64", "a\nb"], NUMBERS)[0] == ["In your command: -b256"]


def test_what_arguments_do_not_say_is_a_line_of_the_loader_and_only_what_differs_is_said() -> None:
    answer, rest = config(256, 16, pinned=True), "pin_memory=True, persistent_workers=True)"
    said, left = lines("python t.py -b 64 -j 4", answer)
    assert (said, left) == ("python t.py -b 256 -j 16", f"DataLoader(..., {rest}  # train.py:33")
    whole = f"DataLoader(..., batch_size=256, num_workers=16, {rest}"
    assert lines("python t.py", answer) == ["# train.py:33", whole], "where one line would be too long"
    assert lines("python t.py", answer, loader_place=None) == [whole]
    assert lines("python t.py -b 64", replace(answer, loader=OWN)) == []
    fixed = lines("python t.py -b 64", answer, fixed_batch_size=64)
    assert fixed == [f"DataLoader(..., num_workers=16, {rest}  # train.py:33"]
    own, raises = (
        replace(OWN, prefetch_factor=4, persistent_workers=True),
        "prefetch_factor=None, persistent_workers=False",
    )
    (line,) = lines("python t.py", config(64, 0), own_loader=own)
    assert line.startswith(f"DataLoader(..., num_workers=0, {raises})"), "what would raise without workers"


@pytest.mark.parametrize(
    ("own", "precision", "parts"),
    [
        ("fp32", "bf16", ["bfloat16", "..."]),
        ("fp32", "fp16", ["GradScaler(", "float16", "...", "scaler.scale(loss).backward(); scaler.step("]),
        ("fp16", "fp32", ["without torch.autocast and GradScaler"]),
        ("bf16", "bf16", []),
        ("own", "own", []),
    ],
)
def test_another_precision_comes_with_its_lines(own: str, precision: str, parts: list[str]) -> None:
    found = lines("python t.py", replace(config(precision=precision), loader=OWN), own_precision=own)
    assert [part in line for part, line in zip(parts, found, strict=True)] == [True] * len(parts)


def test_page_and_exports_say_the_same_and_build_no_model() -> None:
    result = of_script("python train.py -b 64")
    at_yours, typed = (script_lines(result, each.config) for each in (result.best_at_your_batch, result.best))
    shown = {section.title: list(section.lines) for section in page_view(result)["code"]}
    assert shown == {"To keep it": at_yours, "To keep it at batch 256": typed}
    text = export(result, "pytorch")
    compile(text, "pytorch", "exec")
    assert all(f"# {line}\n" in text for line in typed)
    assert "make_optimizer" not in text
    assert "RECIPE = {\n    'precision': 'fp16',\n}" in export(result, "python")


def test_an_autocast_of_the_scripts_own_that_is_switched_off_is_the_one_to_enable() -> None:
    answer = TrialConfig(loader=OWN, recipe=Recipe(precision="bf16", memory_format="channels_last"))
    assert lines("python t.py", answer, own_precision="fp32", autocast_places=("/home/me/train.py:48",)) == [
        "# train.py:48: enable this autocast, with dtype=torch.bfloat16",
        "model = model.to(memory_format=torch.channels_last)  # before the loop",
    ]
