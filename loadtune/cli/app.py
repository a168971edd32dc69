"""The command line: options to a `TuneConfig`, a result to the terminal. Only `cli` modules and `ending` print or exit.

Exit codes: 0 an answer; 1 the run ended without one; 2 an error that the user can correct; 129 SIGHUP; 130 Ctrl-C; 141
the output's reader is gone; 143 SIGTERM. Heavy modules are imported where they are used, so that ``--help`` is quick.
"""

import sys
from argparse import REMAINDER
from collections.abc import Sequence
from pathlib import Path
from shlex import join, quote
from typing import Any

from loadtune import __version__
from loadtune.__main__ import main as main
from loadtune.api.options import TABLE, check, with_command, with_settings
from loadtune.cli import ending
from loadtune.cli.ending import NO_ANSWER, USER_CAN_MEND, show, told_plainly
from loadtune.cli.exec import EXEC
from loadtune.cli.memory import MEMORY
from loadtune.cli.options import JSON, QUIET, VERBOSE, Parser, of_row, option, settings
from loadtune.cli.results import EXPORT, REPORT
from loadtune.errors import UsageError
from loadtune.records.config import TuneConfig
from loadtune.records.result import Result

_NEWEST = ":newest"  # stands for the newest run; no folder of a run has a colon in its name

_USAGE = """Usage: loadtune [OPTIONS] COMMAND [ARGS]...

  Find the DataLoader settings, batch size and precision that train the most
  samples per second here.

Options:
  --version   Print the version.
  -h, --help  Show this message and exit.

Commands:
"""

RUN_EXAMPLES = """PATH:FN names a function or class of yours: pkg.mod:name or FILE.py:name.

Examples:
  loadtune run -- python train.py --epochs 90
  loadtune run --dataset FakeData --model resnet50
  loadtune run --dataset train:make_dataset --model train:make_model \\
    --batch-size 64 --num-workers 4 --pin-memory --amp bf16
  loadtune run --loader train.py:make_loader --model train.py:make_model \\
    --loss train.py:loss --optimizer train.py:make_optimizer
  loadtune run --dataset CIFAR10 --data-root ~/data --model resnet18 \\
    --time-budget 120 --precision bf16
  loadtune run --resume"""


def run(command: list[str], resume: str | None, json: bool, quiet: bool, verbose: bool, **words: Any) -> int:
    """Find the fastest settings for training on this machine.

    What trains is your script, given after --, or the job that the options describe. Finds the largest batch that
    fits, measures real training steps with different settings, then measures the best ones and your settings (the
    baseline) again. Prints the best beside the baseline and writes everything into a folder of its own. Ctrl-C ends the
    run early and keeps what was measured.
    """
    from loadtune import store
    from loadtune.api.tune import tune_config
    from loadtune.host.machine import choose_device, read_host
    from loadtune.report.live import LiveDisplay
    from loadtune.report.machine import machine_line
    from loadtune.report.page import PAGE_FILE
    from loadtune.report.terminal_answer import terminal_answer

    given, folder, kept = settings(TABLE, words), None, TuneConfig()
    if resume is not None:
        folder, kept = _resumed(given.get("out", kept.out) if resume == _NEWEST else resume)
    config = with_settings(kept, given)
    if command:
        config = with_command(config, _after_dashes(command))
    config = check(config, given)
    parts = {"--dataset": {"dataset", "loader"}, "--model": {"model"}}
    is_known = folder is not None or bool(config.workload.command)
    absent = [flag for flag, names in parts.items() if not is_known and names.isdisjoint(given)]
    facts = read_host()
    stream = sys.stderr if json else sys.stdout
    machine = machine_line(facts, choose_device(facts, config.device))  # one that is not there ends the run here
    if not quiet:
        print(machine, file=stream)
        if absent:
            own = " ".join(f"{flag} FILE.py:NAME" for flag in absent)
            print(f"This trains {config.workload.title}. For your own: loadtune run {own}", file=stream)
    with (
        store.run_folder(folder, Path(config.out), config.workload.label, keep_log=verbose) as place,
        ending.termination_as_interruption(),
        LiveDisplay(sys.stderr, quiet=quiet) as display,
    ):
        result = tune_config(config, place, display, resume=folder is not None)
    if not (json and quiet):
        report = place / (PAGE_FILE if (place / PAGE_FILE).exists() else store.RESULT_FILE)
        can_go_on = result.cut_short is not None and (place / store.RUN_FILE).exists()
        goes_on = f"loadtune run --resume {quote(str(place))}" if can_go_on else None
        print("\n" + "\n".join(terminal_answer(result, report, goes_on, with_notes=False)), file=stream)
    if json:
        show((), result, json=True)
    return exit_code(result)


def _after_dashes(words: list[str]) -> list[str]:
    """The command, before which ``--`` stands."""
    if words[0] != "--":
        raise UsageError(
            f"{words[0]!r} stands without an option. A script is tuned with -- before its command: "
            f"loadtune run -- {join(words)}"
        )
    return words[1:]


def exit_code(result: Result) -> int:
    """Of a run that left a result: an interruption outweighs what was confirmed before it."""
    if result.interrupted_by is not None:
        return ending.interruption_code(result.interrupted_by)
    return 0 if result.best is not None else NO_ANSWER


def _resumed(where: str) -> tuple[Path, TuneConfig]:
    """The run's folder and its config: of the newest run below this folder, or of the one that it is."""
    from loadtune.run.state import read_run
    from loadtune.store import RUN_FILE, files_below

    todo = "Give the folder of a run, or run without --resume."
    folder = files_below(Path(where), RUN_FILE, "run to resume", todo)[-1].parent
    return folder, read_run(folder, to_import=True).config


def doctor(freest_gpu: bool, json: bool, verbose: bool) -> None:
    """Show GPUs, cores, memory and what can be measured.

    The device that `loadtune run` would use is marked.

    Examples:

      loadtune doctor
      loadtune doctor --json
      CUDA_VISIBLE_DEVICES=$(loadtune doctor --freest-gpu) python train.py
    """
    from loadtune.host import machine
    from loadtune.report.machine import banner, telemetry_rows
    from loadtune.report.tables import Table

    facts = machine.read_host()
    if freest_gpu:
        print(machine.freest_gpu(facts).uuid)
        return
    device = machine.choose_device(facts, None)
    telemetry = machine.read_telemetry(device)
    rows = (*banner(facts, device), *telemetry_rows(telemetry))
    show([Table(columns=("", ""), rows=rows)], {"host": facts, "device": device, "telemetry": telemetry}, json=json)


_COMMAND = "Your training script, as you start it. Its settings are the baseline."
_RESUME = "Continue the run in FOLDER, or the newest."
RUN = Parser(
    run,
    option("command", help=_COMMAND, value="-- COMMAND", panel="What to train", nargs=REMAINDER),
    *map(of_row, TABLE),
    option("--resume", help=_RESUME, value="[FOLDER]", panel="Output", nargs="?", const=_NEWEST),
    *(JSON, QUIET, VERBOSE),
    takes="[-- COMMAND]...",
    common=(
        *("command", "loader", "dataset", "model", "loss", "optimizer"),
        *("batch_size", "num_workers", "pin_memory", "precision"),
        *("device", "time_budget_s", "out", "quiet"),
    ),
    after=RUN_EXAMPLES,
)
_FREEST = option("--freest-gpu", help="Print only the UUID of the GPU with most free memory.")
COMMANDS = (RUN, Parser(doctor, _FREEST, JSON, VERBOSE), MEMORY, REPORT, EXPORT, EXEC)


def app(words: Sequence[str]) -> int:
    """Run the command that these words begin with. Returns its exit code, or ends the process with that of an error."""
    name, by_name = words[0] if words else "--help", {each.prog.split()[1]: each for each in COMMANDS}
    if name in by_name:
        return by_name[name](words[1:])
    with told_plainly(verbose=False):
        if name == "--version":
            print(f"loadtune {__version__}")
        elif name in ("-h", "--help"):
            print(_USAGE + "".join(f"  {each:<8}{parser.summary}\n" for each, parser in by_name.items()), end="")
        else:
            raise UsageError(f"loadtune has no command {name}. It has {', '.join(by_name)}.")
    return 0 if words else USER_CAN_MEND
