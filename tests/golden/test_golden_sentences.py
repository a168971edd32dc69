"""What is said of loaders under `loadtune exec`, of what limits a winner, of answers, progress, figures and hangs.

The title of each case says what its words have to say. After a change that is meant: ``LOADTUNE_REGENERATE=1 pytest
tests/golden``, and look at the difference.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from page_rig import config, explained, golden, measured, measurement, of_script

from loadtune.inflight.account import Account
from loadtune.inflight.words import summary
from loadtune.records.config import Recipe, TrialConfig
from loadtune.records.loading import Examined, LoadingStep, Values
from loadtune.records.measurement import Progress
from loadtune.records.result import Finalist, Result
from loadtune.records.statistics import Interval
from loadtune.report.sentences import best_with_changes, bottleneck_sentence, limit_sentences
from loadtune.report.terminal import progress_line, terminal_answer
from loadtune.stream.sample_table import Loading, did_not_return_text
from loadtune.units import bytes_text, counted, percent_text, seconds_text

SENTENCES = Path(__file__).parent / "sentences.txt"

MEASURED: dict[str, Any] = {
    "name": "Folder at train.py:31", "own_workers": 4, "num_workers": 16, "kept_workers": 16, "state": "resting",
    "samples_per_s": 2_200.0, "gain": 3.4, "gain_low": 3.1, "gain_high": 3.8,
    "total_s": 30.0, "blocked_s": 4.5,
    "first_blocked_fraction": 0.675,
}  # fmt: skip
EPOCHS = {"first_epochs_s": [48.0, 48.0]}
STEPS = [
    LoadingStep(name="RandomResizedCrop", share=0.52, waits=0.0),
    LoadingStep(name="train.py:31 Image.open(path)", share=0.27, waits=0.8),
    LoadingStep(name="ToTensor", share=0.08, waits=0.1),
    LoadingStep(name="collate_fn: default_collate", share=0.07, waits=None),
]
CHANGES = [
    Examined(name=name, title=title, cheaper=Interval(value=cheaper), values=values, code=code)
    for name, title, cheaper, values, code in (
        (
            "draft_decoding",
            "decode JPEG at reduced size",
            1.83,
            Values(num_samples=64, most=0.018, mean=0.0003, spread=0.9),
            "import a\na.b = c",
        ),
        ("opencv_threads", "one OpenCV thread in each worker", 1.2, None, "cv2.setNumThreads(1)"),
    )
]
OF_RANKS = {"samples_per_s": 300.0, "blocked_s": 18.0, "bottleneck": "workers"}


def kept(**other: Any) -> Account:
    """A loader whose 4 workers became 16, with a gain that was measured."""
    return Account(**(MEASURED | other))


def short(line: int, **other: Any) -> Account:
    """A loader with too few batches."""
    return Account(name=f"Folder at train.py:{line}", own_workers=2, num_workers=2, **other)


def limited(rate: float) -> Result:
    """Its answer at any batch size is that at the user's own."""
    best = replace(explained().best, samples_per_s=rate)
    return replace(explained(), best=best, best_at_your_batch=best)


def loads(probability: float) -> Result:
    """With this probability the cores limit it, which mostly load."""
    pinning, device = explained().bottleneck.limits
    cores = replace(pinning, resource="cores", probability=probability, shares={"loading": 0.7, "computing": 0.3})
    return explained(limits=tuple(sorted((pinning, cores, device), key=lambda each: -each.probability)))


def changed(**more: Any) -> Result:
    *others, contestant = golden().finalists
    contestant = replace(contestant, config=more.get("config") or contestant.config)
    return replace(golden(), remedies=replace(golden().remedies, **more), finalists=(*others, contestant))


def won(config: TrialConfig, *more: Finalist, **figures: Any) -> Result:
    """The golden result with this winner, measured as its own was; no batch size was given."""
    result = golden()
    best = replace(result.best, config=config, **figures)
    finalists = (replace(result.finalists[0], config=config), *result.finalists[1:], *more)
    return replace(result, best=best, best_at_your_batch=None, finalists=finalists, remedies=None, bottleneck=None)


def answer(result: Result, *resume: str) -> list[str]:
    return list(terminal_answer(result, Path("runs/report.html"), *resume))


GOLDEN, BEST, YOURS = golden(), golden().best.config, golden().yours
WAITING = (measurement(4050.0, steps=GOLDEN.steps),)
NONE_GIVEN = replace(GOLDEN, best_at_your_batch=None)
NO_ANSWER = replace(NONE_GIVEN, remedies=None, best=None, finalists=())
STEP_ALONE = replace(YOURS, recipe=Recipe(precision="bf16", memory_format="channels_last"))
SAME_BATCH, YOUR_RECIPE = (
    Finalist(config=replace(each, loader=replace(BEST.loader, batch_size=64)), runs=GOLDEN.finalists[1].runs[:1])
    for each in (BEST, YOURS)
)
MANY = [
    replace(GOLDEN.finalists[0], config=replace(BEST, loader=replace(BEST.loader, num_workers=n))) for n in range(1, 12)
]
OTHER = replace(GOLDEN.best_at_your_batch.config, recipe=BEST.recipe)
MOST_CODE = replace(GOLDEN.best_at_your_batch, config=replace(OTHER, loader=replace(OTHER.loader, prefetch_factor=5)))
"""Every line of code that there can be for batches that are trained on one by one."""
NOTES = ("One sentence.", "Another one.")
CUT, RESUME = {"cut_short": "interrupted by Ctrl-C"}, "loadtune run --resume runs"

TRIED = GOLDEN.remedies.config
ONCE = measured(9, 5052.0, TRIED)
LOST = changed(config=None, gain=Interval(value=0.99, low=0.96, high=1.02))
LOST = replace(LOST, finalists=(*LOST.finalists, replace(LOST.finalists[0], config=TRIED)))
FEWER = replace(TRIED, loader=replace(TRIED.loader, batch_size=48, num_workers=1))
NOW: dict[str, Any] = dict.fromkeys(("config", "best_config"), config(64, 1, precision="bf16"))
NOW |= {"current_samples_per_s": 99.0, "best_samples_per_s": 3441.0, "left_s": 165.0, "expected_s": 61.0}
SEARCHING = Progress(stage="study", number=3, num_trials=12, **NOW)
HANGING = Loading(worker=0, pid=5, index=41, batch=(7, 41), batch_size=2)
ALONE = replace(HANGING, batch_size=1)

SAID = {
    "exec: a gain has its interval, and its workers are to be kept": summary([kept()]),
    "exec: a gain whose interval holds 1 is not proven, and nothing is to be kept": summary([kept(gain_low=0.9)]),
    "exec: a gain that was measured once is not proven": summary([kept(gain_low=None)]),
    "exec: no gain was measured": summary([kept(gain=None)]),
    "exec: one epoch is no interval of epochs": summary([kept(**EPOCHS, epochs_s=[15.0])]),
    "exec: epochs say how long one takes": summary([kept(**EPOCHS, epochs_s=[15.0, 15.0])]),
    "exec: the script ended before the next were compared": summary([kept(state="judging", num_workers=21)]),
    "exec: the script ended before the first were compared": summary([kept(state="judging", kept_workers=None)]),
    "exec: the script ended just after more were taken back": summary(
        [kept(state="watching", samples_per_s=None, num_batches=400, reason="21 workers gained nothing")]
    ),
    "exec: the script ended while its own workers ran again": summary(
        [kept(state="comparing", num_workers=4, gain_low=None)]
    ),
    "exec: rates are those of all ranks, and a loop that still waits gets the reason": summary(
        [kept(rank=rank, **OF_RANKS) for rank in (0, 1)]
    ),
    "exec: three steps of loading are told where it limited the loop": summary([kept(steps=STEPS)]),
    "exec: where cores are the bound, the first step is to be made cheaper": summary(
        [kept(steps=STEPS[2:], bottleneck="cores")]
    ),
    "exec: where the first step waits, workers help": summary([kept(steps=STEPS[1:], bottleneck="workers")]),
    "exec: a worker that is slower than the others is named": summary(
        [kept(steps=STEPS[2:], slow_worker=3, slow_times=2.13)]
    ),
    "exec: changes of the code that were tried have their values, a prediction and their lines": summary(
        [kept(changes=CHANGES, changes_gain=1.62)]
    ),
    "exec: changes that are predicted to gain nothing are not told": summary(
        [kept(changes=CHANGES[:1], changes_gain=1.01)]
    ),
    "exec: where nobody waited for data, no step is told": summary(
        [kept(steps=STEPS, blocked_s=1.0, first_blocked_fraction=0.04)]
    ),
    "exec: loaders with too few batches share a line that says how many are needed": summary(
        [
            short(40, num_batches=15, epoch_batches=5, total_s=3.0),
            short(60, num_batches=30, total_s=6.0, reason="a stream stays as it is"),
        ]
    ),
    "bottleneck: one resource is named": bottleneck_sentence(limited(4050.0)),
    "bottleneck: a limit below the measured rate is not told": bottleneck_sentence(limited(4300.0)),
    "bottleneck: the batch size is told where it is not the user's own": bottleneck_sentence(explained()),
    "bottleneck: a model that does not hold names nothing and says why": bottleneck_sentence(
        explained(holds=False, num_missed=3)
    ),
    "bottleneck: where a resource loads, three steps are told": limit_sentences(loads(1.0)),
    "bottleneck: where loading nearly limits, steps are told": limit_sentences(loads(0.2)),
    "bottleneck: where loading does not limit, no step is told": limit_sentences(loads(0.05)),
    "bottleneck: where training waits for data and no model fits, steps are told": limit_sentences(
        replace(explained(holds=False), finalists=(replace(GOLDEN.finalists[0], runs=WAITING),))
    ),
    "changes: settings are told where they are not those of the answer": best_with_changes(changed(config=FEWER)),
    "changes: what is not proven is named": best_with_changes(LOST),
    "changes: what the confirmation had no time for is told by its trial": best_with_changes(
        replace(changed(config=None, gain=None), trials=(*GOLDEN.trials, ONCE))
    ),
    "answer: without a batch size of theirs the best is the headline": answer(NONE_GIVEN),
    "answer: what was assumed are PyTorch's defaults": answer(
        replace(NONE_GIVEN, assumed=("batch_size", "num_workers", "pin_memory", "precision"))
    ),
    "answer: a baseline that failed is compared with nothing": answer(
        replace(won(BEST, speedup=None), finalists=GOLDEN.finalists[:2])
    ),
    "answer: where only the step gains the loader is called right, and the lines of the step are shown": answer(
        won(STEP_ALONE)
    ),
    "answer: of a gain of all levers at once the headline says enough": answer(won(BEST)),
    "answer: levers that changed together have one gain": answer(won(BEST, SAME_BATCH)),
    "answer: a gain is measured where contestants differ in one lever alone": answer(
        won(BEST, SAME_BATCH, YOUR_RECIPE)
    ),
    "answer: where not all contestants fit, the answer and the baseline stay": answer(
        replace(GOLDEN, finalists=(*GOLDEN.finalists, *MANY), cut_short="interrupted")
    ),
    "answer: a run that was cut short without a winner": answer(replace(NO_ANSWER, **CUT), RESUME),
    "answer: a run that was cut short while it tried changes": answer(
        replace(NO_ANSWER, remedies=changed(config=None, gain=None).remedies, trials=(*GOLDEN.trials, ONCE), **CUT)
    ),
    "answer: no trial was measured": answer(replace(NO_ANSWER, trials=(), bottleneck=None)),
    "answer: the most code": answer(replace(GOLDEN, best_at_your_batch=MOST_CODE, **CUT), RESUME),
    "answer: of a script its command with new values, and what no argument says": answer(
        of_script("python train.py --data photos -b 64 -j 4")
    ),
    "answer: of a script the most code": answer(
        replace(of_script(f"python train.py -j 4 {'--option value ' * 15}"), best_at_your_batch=MOST_CODE, **CUT),
        RESUME,
    ),
    "answer: notes that do not fit are counted": answer(replace(GOLDEN, notes=NOTES)),
    "answer: notes that fit are shown": answer(replace(NO_ANSWER, notes=NOTES)),
    "progress: what is done, the best so far and the time left": [progress_line(SEARCHING)],
    "progress: what is measured now, where there is room": [progress_line(SEARCHING, 200)],
    "progress: not where there is none": [progress_line(SEARCHING, 100)],
    "progress: the most that is left, where no more is known": [progress_line(Progress(stage="study", left_s=65.0))],
    "figures: as many digits as tell two apart, and never wider than a table allows": [
        *(counted(1, "class"), counted(1_281_167, "sample")),
        *(bytes_text(None), bytes_text(999), bytes_text(int(1.5 * 2**30)), bytes_text(int(139.24 * 2**30))),
        *(percent_text(0.0134, 1), seconds_text(0.0031), seconds_text(185.0), seconds_text(3599.6)),
    ],
    "hang: a sample is named with its batch": [did_not_return_text([HANGING], 28.2)],
    "hang: a batch that is loaded at once is named by its first samples": [
        did_not_return_text([replace(HANGING, index=None, batch_size=64)], 28.2)
    ],
    "hang: two of several are named": [did_not_return_text([ALONE, replace(ALONE, worker=1, index=3), HANGING], 28.2)],
}


def test_each_case_reads_as_it_did() -> None:
    found = "".join(f"===== {title}\n" + "".join(f"{line}\n" for line in lines) for title, lines in SAID.items())
    if os.environ.get("LOADTUNE_REGENERATE"):
        SENTENCES.write_text(found, encoding="utf-8")
    assert found == SENTENCES.read_text(encoding="utf-8")


def test_an_answer_has_at_most_22_lines_of_100_columns_and_its_code_within_12() -> None:
    for lines in (lines for title, lines in SAID.items() if title.startswith("answer: ")):
        assert len(lines) <= 22
        assert max(map(len, lines)) <= 100
    early = "\n".join(SAID["answer: the most code"][:12])
    code = ("loader = DataLoader(", "channels_last)", "fused=True", "GradScaler(", "autocast(", "scaler.step(")
    assert all(part in early for part in code)
