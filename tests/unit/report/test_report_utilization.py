"""What a table and `doctor` say of a machine's figures, and what they leave out where there are none."""

from loadtune.records import Telemetry
from loadtune.report.utilization import _NAMES, missing_lines, telemetry_rows, utilization_rows

FULL = Telemetry(
    seconds=1.0,
    num_readings=10,
    gpu_utilization_fraction=0.9,
    gpu_utilization_p5_fraction=0.4,
    gpu_utilization_p95_fraction=1.0,
    gpu_idle_fraction=0.02,
    gpu_power_w=500.0,
    gpu_sm_activity_fraction=0.6,
    cpu_utilization_fraction=0.8,
    workers_cpu_cores=11.0,
)
OLDER = Telemetry(seconds=1.0, num_readings=10, gpu_utilization_fraction=0.7, cpu_utilization_fraction=0.6)


def cells(every, device_kind="cuda"):
    return {name: tuple(cell(runs) for runs in every) for name, cell in utilization_rows(every, device_kind)}


def test_means_are_over_the_runs_that_know_a_figure():
    twice = [FULL, OLDER]
    assert cells([twice, []]) == {
        "GPU utilization": ("80% (idle 2%)", "–"),
        "  5th–95th percentile": ("40% to 100%", "–"),
        "SM / tensor activity": ("60% / –", "–"),
        "GPU power": ("500 W", "–"),
        "CPU utilization": ("70%", "–"),
        "  used by workers": ("11.0 cores", "–"),
    }


def test_an_older_result_has_the_rows_it_always_had():
    assert cells([[OLDER], [OLDER]]) == {"GPU utilization": ("70%", "70%"), "CPU utilization": ("60%", "60%")}


def test_on_a_cpu_no_row_is_of_a_gpu():
    assert not any("GPU" in name or "SM" in name or "percentile" in name for name in cells([[FULL]], "cpu"))


def test_cells_leave_room_for_three_configurations():
    assert max(len(cell) for row in cells([[FULL]]).values() for cell in row) <= 15


def test_what_is_missing_is_told_once_a_reason():
    missing = {
        "gpu_utilization_fraction": "not supported under MIG",
        "gpu_sm_clock_hz": "no permission",
        "gpu_sm_activity_fraction": "not supported under MIG",
    }
    seen = Telemetry(seconds=1.0, num_readings=1, gpu_power_w=1.0, missing=missing)
    assert missing_lines(seen) == ("GPU duty cycle, SM activity: not supported under MIG", "SM clock: no permission")
    first, *rest = telemetry_rows(seen, "cuda")
    assert first == ("telemetry", "1 of 4 figures of GPU, CPU and memory")
    assert [text.partition(": ")[2] for _, text in rest] == list(missing_lines(seen))


def test_where_nothing_is_missing_one_line_says_so():
    seen = Telemetry(seconds=1.0, num_readings=1, cpu_utilization_fraction=1.0)
    assert telemetry_rows(seen, "cpu") == (("telemetry", "all 1 figures of CPU and memory; there is no GPU"),)


def test_every_name_is_a_figure():
    assert set(_NAMES) <= set(Telemetry.__dataclass_fields__)
