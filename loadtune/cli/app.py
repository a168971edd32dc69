"""The commands but `exec`: options to a `TuneConfig`, a result to the terminal. Only `cli` modules print or exit.

Exit codes: 0 an answer; 1 the run ended without one; 2 an error that the user can correct; 129 SIGHUP; 130 Ctrl-C; 141
the output's reader is gone; 143 SIGTERM. Heavy modules are imported where they are used, so that ``--help`` is quick.
"""

import contextlib
import sys
import warnings
from argparse import REMAINDER
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import join, quote
from typing import Any

from loadtune import __version__
from loadtune.api.given import TABLE, check, with_command, with_settings
from loadtune.cli.command import (
    JSON,
    NO_ANSWER,
    QUIET,
    USER_CAN_MEND,
    VERBOSE,
    Parser,
    interruption_code,
    of_row,
    option,
    settings,
    show,
    termination_as_interruption,
    told_plainly,
)
from loadtune.cli.exec import EXEC
from loadtune.errors import NothingFitsError, UsageError, WorkloadError, one_of
from loadtune.records.config import Precision, TuneConfig, WorkloadSpec
from loadtune.records.facts import Device
from loadtune.records.memory import FootprintReport, StepAccount
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
    from loadtune.report.page import PAGE_FILE
    from loadtune.report.tables import machine_line
    from loadtune.report.terminal import LiveDisplay, terminal_answer

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
        termination_as_interruption(),
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
        return interruption_code(result.interrupted_by)
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
    from loadtune.report.tables import Table, banner, telemetry_rows

    facts = machine.read_host()
    if freest_gpu:
        print(machine.freest_gpu(facts).uuid)
        return
    device = machine.choose_device(facts, None)
    telemetry = machine.read_telemetry(device)
    rows = (*banner(facts, device), *telemetry_rows(telemetry))
    show([Table(columns=("", ""), rows=rows)], {"host": facts, "device": device, "telemetry": telemetry}, json=json)


_BOARD = "loadtune-board.html"


def report(results: list[str], out: str | None, board: bool, verbose: bool) -> None:
    """Write the HTML report of one result, or of several.

    The report is one file that opens offline in any browser. For a folder with several runs it shows the newest one,
    or with --board a page over all of them.

    Examples:

      loadtune report
      loadtune report loadtune-results/FakeData-resnet50 --out resnet50.html
      loadtune report h100 h200
      loadtune report benchmarks/results --board --out board.html
    """
    page = None if out is None else Path(out)
    if page is not None and page.suffix.lower() not in (".html", ".htm"):  # result.json would be overwritten
        raise UsageError(f"--out is {out}; it must name an HTML file. Write for example --out report.html.")
    from loadtune.report.page import PAGE_FILE, write_board, write_page
    from loadtune.store import load_result, result_files

    folders = [Path(each) for each in results or [TuneConfig().out]]
    if board or len(folders) > 1:
        print(write_board(folders, page or Path(_BOARD)))
    else:
        file = result_files(folders[0])[-1]
        print(write_page(load_result(file), page or file.parent / PAGE_FILE))


_RESULTS = "A result.json, or a folder that holds one. Several: one page over all results below them."
_PAGE = f"HTML file to write. [default: report.html beside the result; for several, {_BOARD}]"
REPORT = Parser(
    report,
    option("results", help=_RESULTS, value="RESULT", nargs="*"),
    option("-o", "--out", help=_PAGE, value="FILE"),
    option("--board", help="One page over all results below the folders."),
    VERBOSE,
    takes="[RESULT]...",
)


def export(
    result: str | None, format: str, out: str | None, change: str | None, keep_batch_size: bool, verbose: bool
) -> None:
    """Write the confirmed winner for another program to read.

    With --change, RESULT may also be an inflight.json of `loadtune exec --out`, or a folder with one.

    Forms:

      python       loader_kwargs.py to import: LOADER_KWARGS, and RECIPE with
                   precision, memory format and fused optimizer
      pytorch      loader and training step of a plain loop, to paste
      json         loader arguments, precision and throughput as JSON

    Examples:

      loadtune export --out loader_kwargs.py
      loadtune export loadtune-results/FakeData-resnet50 --format pytorch
      loadtune export --change decode tuned/inflight.json
    """
    from loadtune.api.adopt import export as written
    from loadtune.report.forms import FORMS
    from loadtune.store import load_result, not_written

    one_of("--format", format, tuple(FORMS))
    with warnings.catch_warnings(record=True, action="always") as told:
        if change is not None:
            text = _code_of(change, None if result is None else Path(result))
        else:
            text = written(load_result(result), format, keep_batch_size=keep_batch_size)
    for each in told:
        print(f"warning: {each.message}", file=sys.stderr)
    if out is None:
        print(text, end="")
        return
    try:
        Path(out).write_text(text, encoding="utf-8")  # in place: it may be /dev/null
    except OSError as error:
        raise not_written(Path(out), error, len(text)) from error
    print(f"Written to {out}", file=sys.stderr)


_RESULT = "result.json, or a folder with one. [default: the newest run here]"
_CHANGE = "Write the code of this change of your code, as in decode, and no settings."
EXPORT = Parser(
    export,
    option("result", help=_RESULT, value="RESULT", nargs="?"),
    option("--format", help="One of the forms listed above. [default: python]", value="FORM", default="python"),
    option("-o", "--out", help="File to write; replaced if it exists. [default: stdout]", value="FILE"),
    option("--change", help=_CHANGE, value="NAME"),
    option("--keep-batch-size", help="Take the best settings at your --batch-size of `loadtune run`."),
    VERBOSE,
    takes="[RESULT]",
)


def _code_of(change: str, path: Path | None) -> str:
    """The lines to paste of a change whose name or title has this word in it."""
    from loadtune.inflight.account import RESULT_FILE, read_accounts
    from loadtune.store import load_result

    file = None if path is None else path / RESULT_FILE if path.is_dir() else path
    if file is not None and file.name == RESULT_FILE and file.exists():
        try:
            tried = [(each.name, each.title, each.code) for account in read_accounts(file) for each in account.changes]
        except (OSError, ValueError) as error:
            raise UsageError(f"{error}. Name an inflight.json of `loadtune exec --out`.") from None
    else:
        remedies = load_result(path).remedies
        tried = [(each.name, each.title, each.code) for each in (() if remedies is None else remedies.tried)]
    named = {name: f"# {title}\n{code}\n" for name, title, code in tried if code}
    word = change.lower()
    found = [code for name, code in named.items() if word and word in name]
    found = found or [code for code in named.values() if word and word in code.splitlines()[0].lower()]
    if not found:
        known = f"It has {', '.join(named)}." if named else "No change of the code was found to help in it."
        raise UsageError(f"--change {change} is not in the result. {known}")
    return "\n".join(found)


# Memory: an estimate is made in this process, without a CUDA context; the training process measures on a GPU

_ROWS = {row.name: row for row in TABLE}
_BATCH_SIZE = 32  # large enough that activations show their share, and what most scripts begin with
_STEP = (
    *(row for row in TABLE if row.owner is WorkloadSpec and row.name != "accumulate"),
    replace(_ROWS["batch_size"], help="Batch size of the step.", default=str(_BATCH_SIZE)),
    replace(_ROWS["precision"], help="Precision of the step.", flags=("--precision",)),
    replace(
        _ROWS["device"],
        help="cuda, cuda:1 or a GPU's UUID: measure there. cpu: estimate from tensor shapes.",
        default="the GPU with most free memory, else cpu",
    ),
    replace(
        _ROWS["max_gpu_memory_bytes"],
        help="Also estimate the largest batch for this much GPU memory.",
        flags=("--memory",),
        value="24GiB",
        default=None,
    ),
)


def memory(arguments: list[str], per_layer: bool, trace: str | None, json: bool, verbose: bool, **words: Any) -> None:
    """Show where the memory of one training step goes.

    Measured on a GPU, with an estimate from tensor shapes beside it. Without a GPU: the estimate alone.

    Examples:

      loadtune memory --model resnet50 --batch-size 32 --memory 24GiB
      loadtune memory --model vit_b_16 --precision bf16 --per-layer
      loadtune memory --trace train.py
    """
    given = settings(_STEP, words)
    if trace is not None:
        beside = [row.flag for row in _STEP if row.name in given and row.name != "device"] + ["--per-layer"] * per_layer
        if beside:
            raise UsageError(
                f"--trace runs a script, which has its own data, model and settings. Leave {', '.join(beside)} out: "
                "with --trace only --json and --verbose can be given."
            )
        _trace(Path(trace), arguments, json=json)
        return
    if arguments:
        raise UsageError(f"{arguments[0]!r} stands without an option. Arguments of a script need --trace SCRIPT.")
    from loadtune.host.machine import choose_device, read_host
    from loadtune.report.tables import footprint_view

    config = check(with_settings(TuneConfig(), given), given)
    chosen = choose_device(read_host(), config.device)
    gpu = chosen if chosen.kind == "cuda" else None
    if gpu is None and config.device is None:
        print("Found no CUDA GPU: estimating from tensor shapes, as with --device cpu.", file=sys.stderr)
    report = _report(config, gpu, per_layer=per_layer)
    show(footprint_view(report), report, json=json)


_ARGUMENTS = "With --trace: arguments of the script, after --."
_TRACE = "Instead run this script and show the memory of each line."
MEMORY = Parser(
    memory,
    *(of_row(replace(row, panel="What to train")) for row in _STEP),
    option("--per-layer", help="Also list each layer's parameters and saved activations."),
    option("--trace", help=_TRACE, value="SCRIPT"),
    option("arguments", help=_ARGUMENTS, value="ARGUMENTS", nargs="*"),
    *(JSON, VERBOSE),
    takes="[ARGUMENTS]...",
)


def _trace(script: Path, arguments: list[str], *, json: bool) -> None:
    """Show the memory of each line of the script, however it ends; its exception or exit code is the command's."""
    from loadtune.footprint.trace import run_traced, trace_memory

    trace = trace_memory()
    try:
        with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():  # stdout is the JSON's
            run_traced(script, arguments, trace)
    finally:
        if trace.lines:
            print(trace.json().decode() if json else trace.text(), end="")


def _report(config: TuneConfig, gpu: Device | None, *, per_layer: bool) -> FootprintReport:
    """Measured on the GPU, with the estimate beside it; None: the estimate alone. This process has no CUDA context."""
    from loadtune.footprint.estimate import estimate_step, largest_batch, plan_of_spec

    spec, memory_bytes = config.workload, config.max_gpu_memory_bytes
    batch_size, precision = config.yours.batch_size or _BATCH_SIZE, config.yours.precision or "fp32"
    plan = plan_of_spec(spec, precision)
    measured = None if gpu is None else _measured(spec, gpu, precision, batch_size)
    try:
        estimate, layers = estimate_step(plan, batch_size)
    except WorkloadError:  # the forward pass depends on the values of tensors: shapes are not enough
        if measured is None or per_layer or memory_bytes is not None:
            raise
        return FootprintReport(account=measured)
    return FootprintReport(
        account=measured or estimate,
        estimate=None if measured is None else estimate,
        layers=layers if per_layer else (),
        largest_batch=None if memory_bytes is None else largest_batch(plan, memory_bytes),
    )


def _measured(spec: WorkloadSpec, gpu: Device, precision: Precision, batch_size: int) -> StepAccount:
    """Raises WorkloadError, NothingFitsError, TrainingError."""
    from loadtune.training.client import TrainingClient

    with TrainingClient(spec, gpu) as training:
        training.describe()  # says what of the workload does not train
        found = training.account(precision, batch_size)
    if isinstance(found, StepAccount):
        return found
    if found.is_of_memory:
        raise NothingFitsError(
            f"A batch of {batch_size} does not fit into GPU memory: {found.message} Lower --batch-size."
        )
    raise WorkloadError(f"The memory of the step could not be measured: {found.message}", found.log_tail or None)


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
