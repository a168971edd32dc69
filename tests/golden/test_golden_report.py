"""The report of one fixed result, word for word, and that result's own JSON, which later versions must still read.

After a change that is meant: ``LOADTUNE_REGENERATE=1 pytest tests/golden``, and look at the difference.
"""

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from loadtune.records import (
    Bottleneck,
    ComputePoint,
    Device,
    Efficiency,
    Estimate,
    Finalist,
    FitReport,
    GpuFacts,
    GpuProcess,
    HostFacts,
    LoaderConfig,
    Measurement,
    MemoryCeiling,
    Predicted,
    PredictedChange,
    Ratio,
    Recipe,
    RecipeChoice,
    Remedies,
    ResourceLimit,
    RooflinePoint,
    Telemetry,
    Timeline,
    Trial,
    TrialConfig,
    TrialFailure,
    TriedRemedy,
    TuneConfig,
    TuningResult,
    Window,
    Winner,
    WorkerUse,
    WorkloadFacts,
    YourSettings,
)
from loadtune.report.store import as_json, load_result
from loadtune.report.terminal_answer import terminal_answer
from loadtune.report.text import banner_text
from loadtune.report.view import banner, summary
from loadtune.testing import GIB

HERE = Path(__file__).parent
FP16 = Recipe(precision="fp16", memory_format="channels_last", fused_optimizer=True)
BEST = TrialConfig(loader=LoaderConfig(batch_size=256, num_workers=16, pin_memory=True), recipe=FP16)
OUT_OF_MEMORY = TrialConfig(loader=LoaderConfig(batch_size=512, num_workers=16, pin_memory=True), recipe=FP16)
AT_YOURS = TrialConfig(loader=LoaderConfig(batch_size=64, num_workers=12, pin_memory=True), recipe=FP16)
UINT8 = replace(BEST, remedies=("uint8_transfer",))
AHEAD = replace(BEST, remedies=("uint8_transfer", "copy_ahead"))
YOURS = TrialConfig(loader=LoaderConfig(batch_size=64, num_workers=4), recipe=Recipe())


def window(rate: float, start_s: float = 0.0, wait_fraction: float = 0.0) -> Window:
    return Window(start_s=start_s, seconds=1.0, num_steps=10, num_samples=int(rate), wait_s=wait_fraction)


def measurement(rate: float, wait_fraction: float) -> Measurement:
    return Measurement(
        windows=(window(rate, 0.0, wait_fraction), window(rate, 1.0, wait_fraction)),
        first_batch_s=0.9,
        refill_s=0.31,
        epoch_samples=1_000_000,
        seconds=5.5,
        peak_allocated_bytes=11_500_000_000,
        peak_reserved_bytes=13_900_000_000,
        telemetry=Telemetry(
            seconds=2.0,
            num_readings=20,
            gpu_utilization_fraction=0.97 - wait_fraction,
            gpu_utilization_p5_fraction=0.97 - 4 * wait_fraction,
            gpu_utilization_p95_fraction=1.0,
            gpu_idle_fraction=wait_fraction / 2,
            gpu_memory_used_bytes=14_000_000_000,
            gpu_power_w=512.4,
            gpu_energy_j=1025.0,
            gpu_sm_activity_fraction=0.61,
            gpu_sm_occupancy_fraction=0.4,
            gpu_tensor_activity_fraction=0.33,
            gpu_dram_bandwidth_fraction=0.45,
            gpu_pcie_read_bytes_per_s=2.3e9,
            gpu_pcie_write_bytes_per_s=1.1e6,
            gpu_sm_clock_hz=1.98e9,
            gpu_memory_clock_hz=3.201e9,
            gpu_others_memory_bytes=10_145_000_000,
            cpu_utilization_fraction=0.88,
            core_utilization_fractions=(1.0, 0.76),
            others_cpu_cores=0.3,
            cgroup_cpu_cores=14.1,
            num_cpu_throttles=0,
            cpu_throttled_s=0.0,
            bench_cpu_cores=13.2,
            bench_rss_bytes=9_000_000_000,
            main_cpu_cores=1.3,
            main_rss_bytes=5_000_000_000,
            workers_cpu_cores=11.9,
            workers=(WorkerUse(cpu_cores=6.0, rss_bytes=2_000_000_000), WorkerUse(cpu_cores=5.9)),
            ram_available_bytes=110_000_000_000,
            ram_used_bytes=27_000_000_000,
            shm_used_bytes=700_000_000,
            disk_read_bytes_per_s=0.0,
            file_read_bytes_per_s=45_000_000.0,
            timeline=Timeline(slice_s=1.0, gpu_utilization_fraction=(0.95, None)),
            missing={"gpu_others_sm_fraction": "no permission"},
        ),
    )


def fit(
    batch_size: int,
    first: float,
    steady: float,
    reserved: float,
    *,
    seconds: float,
    retries: int = 0,
    steady_retries: int = 0,
) -> FitReport:
    """A size that fits; memory in GiB."""
    return FitReport(
        precision="fp16",
        batch_size=batch_size,
        first_step_peak_bytes=int(first * GIB),
        steady_peak_bytes=int(steady * GIB),
        reserved_peak_bytes=int(reserved * GIB),
        num_alloc_retries=retries,
        num_steady_retries=steady_retries,
        seconds=seconds,
    )


def fixed_remedies() -> Remedies:
    """Two that gain, one that does not, and one that was not tried."""
    tried = (
        TriedRemedy(
            name="uint8_transfer",
            title="send uint8 images, make floats on the GPU",
            changes="none (samples are equal to the last bit)",
            code="# in the dataset: workers send bytes\n"
            "dataset.transform = transforms.Compose([transforms.PILToTensor()])\n"
            "# in the training loop, once the images are on the GPU\n"
            "images = images.float().div_(255)",
            base=BEST,
            config=UINT8,
            predicted=Estimate(value=1.31, low=1.21, high=1.41),
            gain=Ratio(ratio=1.27, low=1.22, high=1.32),
            runs=(measurement(5130, 0.02), measurement(5160, 0.02)),
            base_runs=(measurement(4040, 0.04), measurement(4060, 0.05)),
            kept=True,
        ),
        TriedRemedy(
            name="copy_ahead",
            title="copy one batch ahead on a side stream",
            changes="one more batch of GPU memory",
            code="for inputs, targets in copied_ahead(loader, device):\n    ...",
            base=UINT8,
            config=AHEAD,
            predicted=Estimate(value=1.06, low=1.02, high=1.1),
            gain=Ratio(ratio=1.04, low=1.01, high=1.07),
            runs=(measurement(5340, 0.01), measurement(5360, 0.01)),
            base_runs=(measurement(5140, 0.02), measurement(5150, 0.02)),
            kept=True,
        ),
        TriedRemedy(
            name="start_method",
            title="start workers by forkserver",
            changes="workers take seconds longer to start; the dataset has to pickle",
            code='loader = DataLoader(dataset, multiprocessing_context="forkserver", ...)',
            base=AHEAD,
            config=replace(AHEAD, remedies=(*AHEAD.remedies, "start_method")),
            gain=Ratio(ratio=0.99, low=0.96, high=1.02),
            runs=(measurement(5300, 0.01), measurement(5310, 0.01)),
            base_runs=(measurement(5350, 0.01), measurement(5360, 0.01)),
        ),
        TriedRemedy(
            name="compiled",
            title="torch.compile of the model",
            changes="rounding; compiling takes most of a minute at each start",
            code="model = torch.compile(model, dynamic=False)",
            base=AHEAD,
            config=replace(AHEAD, recipe=replace(FP16, compile=True), remedies=(*AHEAD.remedies, "compiled")),
            predicted=Estimate(value=1.05, low=1.01, high=1.09),
            reason="no time was left to try it",
        ),
    )
    return Remedies(
        tried=tried,
        config=AHEAD,
        samples_per_s=5350.0,
        half_width_fraction=0.03,
        gain=Ratio(ratio=1.32, low=1.26, high=1.38),
        compute_fraction=0.87,
    )


def fixed_result() -> TuningResult:
    """A made-up run in which everything a report can show is present."""
    gpu = GpuFacts(
        uuid="GPU-0001",
        index=0,
        name="NVIDIA H200",
        total_bytes=150_000_000_000,
        free_bytes=139_210_000_000,
        utilization_fraction=0.0,
        processes=(GpuProcess(pid=812, name="python", used_bytes=10_145_000_000),),
        driver_bytes=645_000_000,
        num_multiprocessors=132,
        compute_capability="9.0",
    )
    oom = TrialFailure(kind="oom", phase="training", message="out of memory")
    return TuningResult(
        loadtune_version="0.1.0",
        created="2026-11-20T17:03:12Z",
        seconds=201.4,
        stage_seconds={"start": 6.1, "calibrate": 43.7, "study": 110.0, "confirm": 41.6},
        config=TuneConfig(num_trials=20, yours=YourSettings(batch_size=64, num_workers=4)),
        host=HostFacts(
            hostname="node-1",
            os="Linux 6.8",
            python="3.12.4",
            torch="2.11.0",
            cuda="13.0",
            driver="580.1",
            cpu_name="Xeon Platinum 8480",
            num_usable_cores=16,
            num_listed_cores=224,
            ram_total_bytes=2_000_000_000_000,
            ram_limit_bytes=137_438_953_472,
            ram_available_bytes=120_000_000_000,
            shm_total_bytes=68_719_476_736,
            shm_free_bytes=68_000_000_000,
            gpus=(gpu,),
        ),
        device=Device(kind="cuda", uuid="GPU-0001", name="NVIDIA H200"),
        facts=WorkloadFacts(
            dataset_length=1_000_000,
            input_shape=(3, 224, 224),
            input_dtype="float32",
            sample_bytes=602_120,
            sample_s=0.0021,
            num_classes=1000,
            num_parameters=25_557_032,
            precisions=("fp32", "fp16", "bf16"),
            min_batch_size=2,
            start_method="fork",
            device_name="NVIDIA H200",
            torch="2.11.0",
            cuda="13.0",
            memory_capacity_bytes=150_000_000_000,
            memory_budget_bytes=148_000_000_000,
        ),
        yours=YOURS,
        assumed=("pin_memory", "precision"),
        recipes=(
            RecipeChoice(
                chosen=FP16,
                points=(
                    ComputePoint(recipe=Recipe(precision="fp16"), batch_size=256, windows=(window(3018),)),
                    ComputePoint(recipe=FP16, batch_size=256, windows=(window(6121),)),
                ),
            ),
        ),
        ceilings=(
            MemoryCeiling(
                precision="fp16",
                batch_size=3296,
                safe_batch_size=3131,
                limit="memory",
                probes=(
                    fit(32, 1.66, 1.60, 1.79, seconds=0.9),
                    fit(900, 35.6, 35.5, 36.4, seconds=2.8),
                    fit(3296, 128.4, 128.3, 129.3, seconds=4.4, retries=6, steady_retries=2),
                    FitReport(precision="fp16", batch_size=3310, failure=oom, seconds=2.2),
                    fit(3131, 122.1, 122.0, 123.0, seconds=3.1),
                ),
                bytes_per_sample=41_693_000.0,
                fixed_bytes=448_200_000.0,
                line_error_fraction=0.0068,
                small_sizes=(fit(1, 0.61, 0.49, 0.63, seconds=0.4), fit(3, 0.64, 0.55, 0.68, seconds=0.4)),
                capacity_bytes=150_000_000_000,
                budget_bytes=138_900_000_000,
                others_bytes=10_145_000_000,
                others=("python (pid 812), 9.45 GiB",),
                alloc_conf="expandable_segments:True",
            ),
            MemoryCeiling(
                precision="fp32",
                batch_size=96,
                safe_batch_size=96,
                limit="time",
                probes=tuple(replace(fit(size, 2.9, 2.8, 3.1, seconds=0.6), precision="fp32") for size in (32, 96)),
            ),
        ),
        compute_points=(
            ComputePoint(recipe=Recipe(), batch_size=64, windows=(window(1966),)),
            ComputePoint(recipe=FP16, batch_size=256, windows=(window(6121),)),
        ),
        batch_sizes=(64, 128, 256, 512),
        trials=(
            Trial(number=0, config=YOURS, origin="yours", measurement=measurement(1610, 0.15)),
            Trial(
                number=1,
                config=BEST,
                origin="search",
                predicted=Predicted(score=3800.0, low=2900.0, high=5000.0),
                measurement=measurement(4210, 0.04),
            ),
            Trial(number=2, config=OUT_OF_MEMORY, origin="search", failure=oom),
        ),
        finalists=(
            Finalist(config=BEST, runs=(measurement(4000, 0.04), measurement(4100, 0.06)), half_width_fraction=0.04),
            Finalist(config=AT_YOURS, runs=(measurement(2800, 0.02),)),
            Finalist(config=YOURS, runs=(measurement(1600, 0.18), measurement(1640, 0.16)), half_width_fraction=0.03),
        ),
        best=Winner(
            config=BEST,
            samples_per_s=4050.0,
            half_width_fraction=0.04,
            speedup=2.5,
            speedup_low=2.38,
            speedup_high=2.63,
            compute_fraction=0.66,
        ),
        best_at_your_batch=Winner(config=AT_YOURS, samples_per_s=2800.0, half_width_fraction=None, speedup=1.73),
        bottleneck=Bottleneck(
            config=BEST,
            num_predicted=5,
            num_missed=1,
            explained=0.94,
            holds=True,
            late=None,
            limits=(
                ResourceLimit(
                    resource="pinning",
                    samples_per_s=Estimate(value=4150.0, low=3900.0, high=4500.0),
                    probability=0.86,
                    shares={"copying": 0.97, "collating": 0.03},
                ),
                ResourceLimit(
                    resource="device",
                    samples_per_s=Estimate(value=5900.0, low=5500.0, high=6300.0),
                    probability=0.1,
                    shares={"computing": 0.92, "copying": 0.06, "synchronizing": 0.02},
                ),
                ResourceLimit(
                    resource="workers",
                    samples_per_s=Estimate(value=6400.0, low=5100.0, high=8000.0),
                    probability=0.04,
                    shares={"loading": 0.81, "collating": 0.19},
                ),
            ),
            changes=(
                PredictedChange(
                    kind="half_the_loading",
                    num_workers=16,
                    samples_per_s=Estimate(value=4210.0, low=3930.0, high=4540.0),
                    gain=Estimate(value=1.04, low=0.97, high=1.12),
                ),
            ),
            roofline=(
                RooflinePoint(
                    num_workers=0,
                    samples_per_s=Estimate(value=420.0, low=380.0, high=470.0),
                    limits={"main": 430.0},
                ),
                RooflinePoint(
                    num_workers=16,
                    samples_per_s=Estimate(value=4050.0, low=3900.0, high=4200.0),
                    limits={"workers": 6400.0, "pinning": 4150.0, "device": 5900.0},
                ),
            ),
        ),
        remedies=fixed_remedies(),
        notes=("Steps at batch sizes above 3296 were not tried.",),
    )


def by_energy() -> TuningResult:
    """The same run, looking for samples per joule."""
    result = fixed_result()
    assert result.best is not None
    efficiency = Efficiency(samples_per_joule=7.4, half_width_fraction=0.01, gain=1.5, gain_low=1.45, gain_high=1.55)
    config = replace(result.config, objective="samples-per-joule")
    return replace(result, config=config, best=replace(result.best, efficiency=efficiency))


def compiled() -> TuningResult:
    """Cut short, with every line of code that there can be for batches that are trained on one by one."""
    result = replace(fixed_result(), cut_short="interrupted by Ctrl-C")
    assert result.best_at_your_batch is not None
    config = replace(AT_YOURS, recipe=replace(FP16, compile=True))
    return replace(result, best_at_your_batch=replace(result.best_at_your_batch, config=config))


def rendered(content: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    with console.capture() as capture:
        console.print(content)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def answered(result: TuningResult, resume_command: str | None = None) -> str:
    report = Path("loadtune-results/FakeData-resnet50/2026-11-20T17-03-12Z/report.html")
    return "".join(f"{line}\n" for line in terminal_answer(result, report, resume_command))


@pytest.mark.parametrize("name", ["answer.txt", "banner.txt", "result.json"])
def test_the_fixed_result_reads_as_it_did(name: str) -> None:
    result = fixed_result()
    found = {
        "answer.txt": answered(result),
        "banner.txt": rendered(banner_text(banner(result.host, result.device))),
        "result.json": as_json(result).decode(),
    }[name]
    if os.environ.get("LOADTUNE_REGENERATE"):
        (HERE / name).write_text(found, encoding="utf-8")
    assert found == (HERE / name).read_text(encoding="utf-8")


def test_the_kept_json_still_reads_as_that_result() -> None:
    assert load_result(HERE / "result.json") == fixed_result()


def test_a_result_from_before_a_figure_was_kept_still_reads(tmp_path: Path) -> None:
    """What 0.1.0 kept of the machine, and no more: the rest is not known, and the report says what it said."""
    first = {"seconds", "num_readings", "gpu_utilization_fraction", "gpu_memory_used_bytes", "gpu_power_w"}
    first |= {"cpu_utilization_fraction", "bench_cpu_cores", "bench_rss_bytes"}
    older = json.loads((HERE / "result.json").read_text(encoding="utf-8"))
    for measured in (*older["trials"], *older["finalists"]):
        for run in (measured.get("measurement"), *measured.get("runs", ())):
            if run:
                run["telemetry"] = {name: value for name, value in run["telemetry"].items() if name in first}
    (tmp_path / "result.json").write_text(json.dumps(older), encoding="utf-8")
    read = load_result(tmp_path / "result.json")
    telemetry = read.finalists[0].runs[0].telemetry
    assert telemetry is not None
    assert telemetry.gpu_utilization_fraction == pytest.approx(0.93)
    assert (telemetry.timeline, telemetry.missing, telemetry.workers) == (None, {}, ())
    table = summary(read).figures
    assert table is not None
    assert not any("percentile" in row[0] for row in table.rows)


NO_WINNER = replace(fixed_result(), best=None, best_at_your_batch=None, finalists=())


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(fixed_result(), id="complete"),
        pytest.param(replace(fixed_result(), cut_short="interrupted by Ctrl-C"), id="cut-short"),
        pytest.param(replace(NO_WINNER, cut_short="interrupted by Ctrl-C"), id="cut-short-without-winner"),
        pytest.param(NO_WINNER, id="no-winner"),
        pytest.param(replace(NO_WINNER, trials=(), bottleneck=None), id="no-trial"),
        pytest.param(by_energy(), id="samples-per-joule"),
        pytest.param(compiled(), id="most-code"),
    ],
)
def test_the_answer_has_at_most_22_lines_of_100_columns_and_its_code_within_12(result: TuningResult) -> None:
    lines = answered(result, "loadtune run --resume runs" if result.cut_short else None).splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 100
    assert ("To continue: loadtune run --resume runs" in lines) == (result.cut_short is not None)
    if result.best is not None:
        early = "\n".join(lines[:12])
        for part in (
            "loader = DataLoader(",
            "channels_last)",
            "fused=True",
            "GradScaler(",
            "autocast(",
            "scaler.step(",
        ):
            assert part in early


def test_the_banner_fits_80_columns() -> None:
    lines = (HERE / "banner.txt").read_text(encoding="utf-8").splitlines()
    assert max(len(line) for line in lines) <= 80
