"""Cores, their names, memory within limits, and the CPU clock that fits the machine."""

from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtune.host.cgroup import CpuQuota, MemoryLimit
from loadtune.host.cpu import (
    CpuUse,
    core_counter,
    cpu_use,
    first_cores,
    parse_cpu_name,
    read_cpu_name,
    read_num_usable_cores,
    usable_cores,
)
from loadtune.host.memory import bounded_ram, read_ram, read_shm


@pytest.mark.parametrize(
    ("num_allowed", "quota", "usable"),
    [(16, None, 16), (16, 4.0, 4), (16, 1.5, 2), (16, 0.2, 1), (2, 8.0, 2), (0, None, 1)],
)
def test_usable_cores_are_the_least_of_affinity_and_quota(tmp_path, num_allowed, quota, usable):
    assert usable_cores(num_allowed, quota and CpuQuota(cores=quota, folder=tmp_path)) == usable


def test_a_rank_has_both_threads_of_its_cores(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 4, 5, 6})
    for core in range(8):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")
    assert first_cores(4, tmp_path) == (0, 4, 1, 5)
    assert first_cores(2, tmp_path / "tells nothing") == (0, 1)


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor\t: 0\nmodel\t\t: 2\nmodel name\t: AMD  EPYC 9575F\n\nprocessor\t: 1\n", "AMD EPYC 9575F"),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", None),
        ("", None),
    ],
)
def test_cpu_name(cpuinfo, name):
    assert parse_cpu_name(cpuinfo) == name


def test_a_mute_cpuinfo_is_no_error(tmp_path):
    assert read_cpu_name(tmp_path) != ""


def test_each_memory_limit_binds_with_its_own_groups_use():
    ram = bounded_ram(
        1000,
        900,
        [MemoryLimit(limit_bytes=500, used_bytes=100), MemoryLimit(limit_bytes=800, used_bytes=700)],
    )
    assert (ram.total_bytes, ram.limit_bytes, ram.available_bytes) == (1000, 500, 100)


def test_a_limit_above_physical_memory_is_none():
    ram = bounded_ram(1000, 900, [MemoryLimit(limit_bytes=5000, used_bytes=10)])
    assert (ram.limit_bytes, ram.available_bytes) == (1000, 900)


def test_this_machine_makes_sense(tmp_path):
    ram = read_ram()
    assert 0 < ram.available_bytes <= ram.limit_bytes <= ram.total_bytes
    assert read_num_usable_cores() >= 1
    assert read_shm(tmp_path / "nowhere") == (0, 0)
    total, free = read_shm(tmp_path)
    assert free <= total


class Script:
    """Answers from a list, then its last one for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def __call__(self):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def utilizations(num_cores, *looks):
    """Of looks as (moment, what the counter says then)."""
    probe = CpuUse(Script(*[busy_s for _, busy_s in looks]), num_cores)
    return [probe.look(now_s)["cpu_utilization_fraction"] for now_s, _ in looks]


def test_utilization_is_the_counters_growth_over_the_time_between_two_looks():
    assert utilizations(4, (0.0, 10.0), (0.5, 11.0), (1.0, 11.0)) == [None, 0.5, 0.0]


def test_a_counter_that_fails_once_costs_two_looks_and_no_more():
    assert utilizations(2, (0.0, 0.0), (1.0, None), (2.0, 5.0), (3.0, 6.0)) == [None, None, None, 0.5]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=2), st.floats(0.1, 64))
def test_utilization_stays_between_0_and_1(looks, num_cores):
    assert all(value is None or 0 <= value <= 1 for value in utilizations(num_cores, *looks))


def test_under_a_v2_quota_the_groups_own_account_is_used(tmp_path):
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/self/mountinfo").write_text("29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (group / "cpu.max").write_text("150000 100000\n")
    (group / "cpu.stat").write_text("usage_usec 1000000\n")
    probe = cpu_use(2, (0, 1), tmp_path)
    assert probe.look(0.0)["cpu_utilization_fraction"] is None
    (group / "cpu.stat").write_text("usage_usec 1750000\n")
    assert probe.look(1.0)["cpu_utilization_fraction"] == pytest.approx(
        0.5
    )  # 0.75 s of the 1.5 s that the quota grants


def test_busy_is_all_but_idle_and_iowait_of_the_cores_that_are_ours_and_online(monkeypatch):
    cores = [SimpleNamespace(user=busy, idle=1000.0, iowait=7.0) for busy in (10.0, 100.0, 5.0)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: cores)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 16)
    assert core_counter((0, 2, 9))() == 15.0
