"""The command line: options to a `TuneConfig`, a result to the terminal. With `cli_memory`, `cli_results`
and `ending` the only module that prints or exits.

Exit codes: 0 an answer; 1 the run ended without one; 2 an error that the user can correct; 129 SIGHUP; 130 Ctrl-C; 141
the output's reader is gone; 143 SIGTERM. Heavy modules are imported where they are used, so that ``--help`` is quick.
"""

import sys
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from shlex import quote
from typing import Annotated, TextIO

import typer

from loadtune import __version__, options
from loadtune.arguments import (
    check,
    check_together,
    fixed_of,
    memory_of,
    one_of,
    precision_of,
    precisions_of,
    resumed_config,
    tuned_of,
)
from loadtune.cli_exec import exec_
from loadtune.cli_memory import memory
from loadtune.cli_results import check as check_command
from loadtune.cli_results import compare, dashboard, export, report
from loadtune.ending import exit_code, termination_as_interruption, told_plainly
from loadtune.records.config import OBJECTIVES, PROBE_MODES, REMEDY_MODES, TuneConfig, WorkloadSpec, YourSettings
from loadtune.records.facts import HostFacts
from loadtune.records.result import TuningResult
from loadtune.terminal import LastingStream, print_whatever_the_locale, show
from loadtune.units import counted

_DEFAULT = TuneConfig()

app = typer.Typer(
    help="Find the DataLoader settings, batch size and precision that train the most samples per second here.",
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would add half to the time --help takes
)


def main() -> None:
    """Entry point of the ``loadtune`` command."""
    if sys.stderr is not None:  # None: it was closed from the start
        unbuffered = FileIO(sys.stderr.fileno(), "w", closefd=False)
        sys.stderr = LastingStream(unbuffered, sys.stderr.encoding, write_through=True)
    print_whatever_the_locale(sys.stdout, sys.stderr)
    app(prog_name="loadtune")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"loadtune {__version__}")
        raise typer.Exit


@app.callback()
def _all_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that stand before a command's name."""


@app.command(cls=options.RunCommand, epilog=options.RUN_EXAMPLES)
def run(
    ctx: typer.Context,
    dataset: options.Dataset = _DEFAULT.workload.dataset,
    model: options.Model = _DEFAULT.workload.model,
    data_root: options.DataRoot = None,
    image_size: options.ImageSize = None,
    num_classes: options.NumClasses = None,
    loader: options.Loader = None,
    collate: options.Collate = None,
    loss: options.Loss = None,
    compute_loss: options.ComputeLoss = None,
    optimizer: options.Optimizer = "sgd",
    step: options.Step = None,
    accumulate: options.Accumulate = 1,
    batch_dim: options.BatchDim = None,
    batch_size: options.BatchSize = None,
    num_workers: options.NumWorkers = None,
    pin_memory: options.PinMemory = None,
    persistent_workers: options.PersistentWorkers = None,
    amp: options.Amp = None,
    device: options.Device = None,
    precision: options.Precisions = None,
    max_batch_size: options.MaxBatchSize = None,
    max_workers: options.MaxWorkers = None,
    max_gpu_memory: options.MaxGpuMemory = None,
    ranks_per_node: options.RanksPerNode = _DEFAULT.ranks_per_node,
    probe: options.Probe = _DEFAULT.probe,
    remedies: options.Remedies = _DEFAULT.remedies,
    tune: options.Tune = None,
    fix: options.Fix = None,
    warm_start: options.WarmStart = None,
    resume: options.Resume = None,
    objective: options.Objective = _DEFAULT.objective,
    trials: options.Trials = _DEFAULT.num_trials,
    time_budget: options.TimeBudget = _DEFAULT.time_budget_s,
    out: options.Out = _DEFAULT.out,
    seed: options.Seed = _DEFAULT.seed,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Find the fastest settings for training on this machine.

    Finds the largest batch that fits, measures real training steps with different settings, then measures the best
    ones and your settings (the baseline) again. Prints the best beside the baseline and writes everything into a folder
    of its own. Ctrl-C ends the run early and keeps what was measured.
    """
    with told_plainly(debug):
        workload = WorkloadSpec(
            dataset=dataset,
            model=model,
            data_root=data_root,
            image_size=image_size,
            num_classes=num_classes,
            loader=loader,
            collate=collate,
            loss=loss,
            compute_loss=compute_loss,
            optimizer=optimizer,
            step=step,
            accumulate=accumulate,
            batch_dim=batch_dim,
            seed=seed,
        )
        yours = YourSettings(
            batch_size=batch_size,
            num_workers=num_workers,
            pin_memory=pin_memory,
            persistent_workers=persistent_workers,
            precision=None if amp is None else precision_of("--amp", amp),
        )
        config = TuneConfig(
            workload=workload,
            yours=yours,
            device=device,
            precisions=precisions_of(precision or []),
            max_batch_size=max_batch_size,
            max_workers=max_workers,
            num_trials=trials,
            time_budget_s=time_budget,
            out=out,
            seed=seed,
            tune=tuned_of(tune or []),
            fix=fixed_of(fix or []),
            warm_start=warm_start,
            objective=one_of("--objective", objective, OBJECTIVES),
            probe=one_of("--probe", probe, PROBE_MODES),
            remedies=one_of("--remedies", remedies, REMEDY_MODES),
            max_gpu_memory_bytes=None if max_gpu_memory is None else memory_of("--max-gpu-memory", max_gpu_memory),
            ranks_per_node=ranks_per_node,
        )
        given = options.given(ctx)
        check_together(given)
        folder, config = (None, check(config)) if resume is None else _resumed(resume, config, given)
        reopen = folder is not None and "trials" in given
        _run(config, folder, Printed(as_json=json, quiet=quiet), reopen=reopen, debug=debug)


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    freest_gpu: Annotated[
        bool, typer.Option("--freest-gpu", help="Print only the UUID of the GPU with most free memory.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks.")] = False,
) -> None:
    """Show GPUs, cores, memory and what can be measured.

    The device that `loadtune run` would use is marked.

    Examples:

    \b
      loadtune doctor
      loadtune doctor --json
      CUDA_VISIBLE_DEVICES=$(loadtune doctor --freest-gpu) python train.py
    """
    with told_plainly(debug):
        from loadtune import host as machine
        from loadtune.report.machine import banner, telemetry_rows
        from loadtune.report.store import as_json
        from loadtune.report.text import banner_text

        facts = machine.read_host()
        if freest_gpu:
            typer.echo(machine.freest_gpu(facts).uuid)
            return
        device = machine.choose_device(facts, None)
        telemetry = machine.read_telemetry(device, facts.num_usable_cores)
        if json:
            report = {"host": facts, "device": device, "telemetry": telemetry}
            typer.echo(as_json(report), nl=False)
        else:
            show(banner_text((*banner(facts, device), *telemetry_rows(telemetry, device.kind))), sys.stdout)


app.command(epilog=options.MEMORY_EXAMPLES)(memory)
for _command in (report, dashboard, export, compare):
    app.command()(_command)
app.command("check")(check_command)
app.command("exec", context_settings={"allow_interspersed_args": False})(exec_)


def _resumed(where: str, asked: TuneConfig, given: set[str]) -> tuple[Path, TuneConfig]:
    """The run's folder, and its config with the given options in place of its own."""
    from loadtune.run_file import newest_run, read_run

    folder = newest_run(Path(asked.out if where == options.NEWEST else where))
    kept = read_run(folder)
    return folder, check(resumed_config(kept.config, asked, given, len(kept.trials)))


@dataclass(frozen=True, slots=True)
class Printed:
    """What `loadtune run` prints, and where: with `as_json` only the JSON goes to stdout."""

    as_json: bool
    quiet: bool

    @property
    def stream(self) -> TextIO:
        return sys.stderr if self.as_json else sys.stdout


def _run(config: TuneConfig, resumed: Path | None, printed: Printed, *, reopen: bool, debug: bool) -> None:
    from loadtune.host import rank_facts, read_host
    from loadtune.report import store

    facts = rank_facts(read_host(), config.ranks_per_node)
    _print_machine(facts, config.device, printed)
    _warn_of_workers(config, facts)
    with store.run_folder(resumed, Path(config.out), config.workload.label, keep_log=debug) as folder:
        result = _tune(config, folder, printed.quiet, resume=resumed is not None, reopen=reopen)
    has_begun = resumed is None or bool(result.stage_seconds.keys() - {"start"})
    goes_on = result.cut_short is not None and has_begun
    _print_result(result, folder, printed, f"loadtune run --resume {quote(str(folder))}" if goes_on else None)
    if code := exit_code(result):
        raise typer.Exit(code)


def _tune(config: TuneConfig, folder: Path, quiet: bool, *, resume: bool, reopen: bool) -> TuningResult:
    from loadtune.report.live import LiveDisplay
    from loadtune.tuner import tune

    with termination_as_interruption(), LiveDisplay(sys.stderr, quiet=quiet) as display:
        return tune(config=config, folder=folder, listener=display, resume=resume, reopen=reopen)


def _print_machine(facts: HostFacts, requested: str | None, printed: Printed) -> None:
    """The device is chosen even where nothing is printed: one that is not there ends the run before it begins."""
    from loadtune.host import choose_device
    from loadtune.report.machine import machine_line

    device = choose_device(facts, requested)
    if not printed.quiet:
        typer.echo(machine_line(facts, device), file=printed.stream)


def _warn_of_workers(config: TuneConfig, facts: HostFacts) -> None:
    cores = counted(facts.num_usable_cores, "usable core")
    for option, asked in (("--num-workers", config.yours.num_workers), ("--max-workers", config.max_workers)):
        if asked is not None and asked > facts.num_usable_cores:
            typer.echo(
                f"warning: {option} is {asked}, more than the {cores}. More workers than cores help only where workers"
                " wait, for a disk or a network.",
                err=True,
            )


def _print_result(result: TuningResult, folder: Path, printed: Printed, resume_command: str | None) -> None:
    """`resume_command` is set where the run was cut short and can go on."""
    from loadtune.report import store
    from loadtune.report.page.write import PAGE_FILE
    from loadtune.report.terminal_answer import terminal_answer

    if not (printed.as_json and printed.quiet):
        report = folder / (PAGE_FILE if (folder / PAGE_FILE).exists() else store.RESULT_FILE)
        typer.echo("\n".join(("", *terminal_answer(result, report, resume_command))), file=printed.stream)
    if printed.as_json:
        typer.echo(store.as_json(result), nl=False)
