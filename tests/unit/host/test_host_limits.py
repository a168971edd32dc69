"""Cores, memory and their limits, control groups among them, from small file trees with the kernel's texts."""

import os
import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtune.host.processes import cores_used_s, cpu_use
from loadtune.host.usable import (
    UNIFIED,
    parse_counters,
    parse_memory_limit,
    parse_quota,
    read_cpu_name,
    read_cpu_quota,
    read_group_folders,
    read_memory_limits,
    read_num_usable_cores,
    read_oom_kills,
    read_ram,
    read_shm,
)

V2_MOUNT = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/root rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:4 master:1 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V1_MEMBERSHIP = "4:memory:/batch/job7\n2:cpu,cpuacct:/batch/job7\n1:name=systemd:/\n0::/\n"
DOCKER_V1_MOUNT = "36 30 0:30 /docker/4f5e /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory\n"


def make_tree(root: Path, groups: str, mounts: str, files: dict[str, str] | None = None) -> Path:
    """A file system with these texts; ``files`` by their path below ``/sys/fs/cgroup``."""
    texts = {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts}
    texts |= {f"sys/fs/cgroup/{name}": text for name, text in (files or {}).items()}
    for name, text in texts.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("controller", "groups", "mounts", "folders"),
    [
        (UNIFIED, "0::/user.slice/job.scope\n", V2_MOUNT, ["user.slice/job.scope", "user.slice", ""]),
        ("memory", "4:memory:/docker/4f5e/inner\n", DOCKER_V1_MOUNT, ["memory/inner", "memory"]),
        ("memory", "4:memory:/../../kubepods/pod1\n", DOCKER_V1_MOUNT, ["memory"]),  # outside of what is mounted
        ("cpu", "4:memory:/x\n", DOCKER_V1_MOUNT, []),
    ],
)
def test_the_folders_of_a_group_and_of_its_parents(tmp_path, controller, groups, mounts, folders):
    system = make_tree(tmp_path, groups, mounts)
    assert read_group_folders(controller, system) == tuple(system / "sys/fs/cgroup" / each for each in folders)


@given(st.text())
def test_any_text_is_taken(text):
    assert (parse_quota(text) or 1) > 0
    assert (parse_memory_limit(text) or 1) > 0
    parse_counters(text)


def test_the_tightest_quota_of_nested_v2_groups_wins(tmp_path):
    files = {"pod/box/cpu.max": "800000 100000\n", "pod/cpu.max": "300000 100000\n", "cpu.max": "max 100000\n"}
    system = make_tree(tmp_path, "0::/pod/box\n", V2_MOUNT, files)
    assert read_cpu_quota(system) == (3.0, system / "sys/fs/cgroup/pod")


@pytest.mark.parametrize(("quota", "usable"), [("max", 16), ("150000", 2), ("20000", 1), ("1700000", 16)])
def test_usable_cores_are_the_least_of_affinity_and_quota(tmp_path, monkeypatch, quota, usable):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)))
    system = make_tree(tmp_path, "0::/\n", V2_MOUNT, {"cpu.max": f"{quota} 100000\n"})
    assert read_num_usable_cores(system) == usable


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "second"),
    [
        (
            "0::/\n",
            V2_MOUNT,
            {"cpu.max": "150000 100000\n", "cpu.stat": "usage_usec 1000000\n"},
            {"cpu.stat": "usage_usec 1750000\n"},
        ),
        (
            "2:cpuacct:/box\n1:cpu:/box\n",
            "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
            "33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n",
            {
                "cpu/box/cpu.cfs_quota_us": "150000\n",
                "cpu/box/cpu.cfs_period_us": "100000\n",
                "cpuacct/box/cpuacct.usage": "4000000000\n",
            },
            {"cpuacct/box/cpuacct.usage": "4750000000\n"},
        ),
    ],
    ids=["v2", "v1"],
)
def test_under_a_quota_the_groups_own_account_is_used(tmp_path, monkeypatch, groups, mounts, files, second):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    system = make_tree(tmp_path, groups, mounts, files)
    probe = cpu_use(system)
    before = probe.look()["cpu_utilization_fraction"]
    make_tree(tmp_path, groups, mounts, second)
    # 0.75 s of the 1.5 s that the quota grants
    assert probe.look()["cpu_utilization_fraction"].total - before.total == pytest.approx(0.5)


def test_memory_limits_of_v1_leave_out_cache_that_can_be_dropped(tmp_path):
    files = {
        "memory/batch/job7/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/batch/memory.limit_in_bytes": "1000\n",
        "memory/batch/memory.usage_in_bytes": "900\n",
        "memory/batch/memory.stat": "total_inactive_file 300\n",
    }
    (limit,) = read_memory_limits(make_tree(tmp_path, V1_MEMBERSHIP, V1_MOUNTS, files))
    assert limit == (1000, 400)


def test_each_memory_limit_binds_with_its_own_groups_use(tmp_path):
    system = make_tree(tmp_path, "0::/pod/box\n", V2_MOUNT)
    (system / "proc/meminfo").write_text("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  900 kB\n")
    assert read_ram(system) == (1_024_000, 1_024_000, 921_600)
    files = {"pod/memory.max": "800\n", "pod/memory.current": "700\n", "pod/box/memory.max": "500\n"}
    make_tree(tmp_path, "0::/pod/box\n", V2_MOUNT, files | {"pod/box/memory.current": "100\n"})
    assert read_ram(system) == (1_024_000, 500, 100)


def test_the_own_groups_oom_kills_come_before_the_machines(tmp_path):
    """The machine's count also moves when another container runs out of memory."""
    system = make_tree(tmp_path, "0::/job\n", V2_MOUNT)
    assert read_oom_kills(system) is None
    (system / "proc/vmstat").write_text("nr_free_pages 12\noom_kill 7\n")
    assert read_oom_kills(system) == 7
    make_tree(tmp_path, "0::/job\n", V2_MOUNT, {"job/memory.events": "oom 1\noom_kill 0\n"})
    assert read_oom_kills(system) == 0
    files = {
        "memory/batch/memory.oom_control": "oom_kill 9\n",
        "memory/batch/job7/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    }
    assert read_oom_kills(make_tree(tmp_path / "v1", V1_MEMBERSHIP, V1_MOUNTS, files)) == 2


def test_cpu_name(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "processor\t: 0\nmodel\t\t: 2\nmodel name\t: AMD  EPYC 9575F\n\nprocessor\t: 1\n"
    )
    assert read_cpu_name(tmp_path) == "AMD EPYC 9575F"
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nCPU implementer\t: 0x41\n")
    assert read_cpu_name(tmp_path) == platform.machine()


def test_this_machine_makes_sense(tmp_path):
    ram = read_ram()
    assert 0 < ram.available_bytes <= ram.limit_bytes <= ram.total_bytes
    assert read_num_usable_cores() >= 1
    assert read_cpu_name(tmp_path) != ""
    assert read_shm(tmp_path / "nowhere") == (0, 0)
    total, free = read_shm(tmp_path)
    assert free <= total


def test_busy_is_all_but_idle_and_iowait_of_the_cores_that_are_ours_and_online(tmp_path):
    """Fields of ``/proc/stat``: user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice."""
    cores = (f"cpu{core} {user} 20 3 90000 8000 400 50 6 7 7\n" for core, user in ((0, 1000), (1, 10000), (2, 500)))
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(f"cpu  1 1 1 1 1 1 1 1 1 1\n{''.join(cores)}intr 5\n")
    assert cores_used_s((0, 2, 9), tmp_path) == pytest.approx((1500 + 2 * 479) / os.sysconf("SC_CLK_TCK"))
    assert cores_used_s((4, 5), tmp_path) == pytest.approx(6 / os.sysconf("SC_CLK_TCK")), "all that are shown"
