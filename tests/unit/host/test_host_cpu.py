"""Cores, their names, memory within limits, and how busy the cores are."""

import platform
from types import SimpleNamespace

import psutil
import pytest

from loadtune.host.cgroup import CpuQuota, MemoryLimit
from loadtune.host.cpu import (
    core_counter,
    first_cores,
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


def test_cpu_name(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "processor\t: 0\nmodel\t\t: 2\nmodel name\t: AMD  EPYC 9575F\n\nprocessor\t: 1\n"
    )
    assert read_cpu_name(tmp_path) == "AMD EPYC 9575F"
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nCPU implementer\t: 0x41\n")
    assert read_cpu_name(tmp_path) == platform.machine()


def test_each_memory_limit_binds_with_its_own_groups_use():
    limits = [MemoryLimit(limit_bytes=500, used_bytes=100), MemoryLimit(limit_bytes=800, used_bytes=700)]
    ram = bounded_ram(1000, 900, limits)
    assert (ram.total_bytes, ram.limit_bytes, ram.available_bytes) == (1000, 500, 100)
    ram = bounded_ram(1000, 900, [MemoryLimit(limit_bytes=5000, used_bytes=10)])
    assert (ram.limit_bytes, ram.available_bytes) == (1000, 900)


def test_this_machine_makes_sense(tmp_path):
    ram = read_ram()
    assert 0 < ram.available_bytes <= ram.limit_bytes <= ram.total_bytes
    assert read_num_usable_cores() >= 1
    assert read_cpu_name(tmp_path) != ""
    assert read_shm(tmp_path / "nowhere") == (0, 0)
    total, free = read_shm(tmp_path)
    assert free <= total


def test_busy_is_all_but_idle_and_iowait_of_the_cores_that_are_ours_and_online(monkeypatch):
    cores = [SimpleNamespace(user=busy, idle=1000.0, iowait=7.0) for busy in (10.0, 100.0, 5.0)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: cores)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 16)
    assert core_counter((0, 2, 9))() == 15.0
