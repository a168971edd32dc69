"""Limits that control groups set, from literal kernel texts and from small file trees."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtune.host.cgroup import (
    UNIFIED,
    group_folders,
    parse_cpu_max,
    parse_memberships,
    parse_memory_limit,
    parse_mounts,
    read_cpu_quota,
    read_memory_limits,
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


def make_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def folders(controller: str, membership: str, mounts: str) -> list[str]:
    return [str(folder) for folder in group_folders(controller, parse_memberships(membership), parse_mounts(mounts))]


def test_nested_group_on_a_host_lists_every_parent():
    assert folders(UNIFIED, "0::/user.slice/job.scope\n", V2_MOUNT) == [
        "/sys/fs/cgroup/user.slice/job.scope",
        "/sys/fs/cgroup/user.slice",
        "/sys/fs/cgroup",
    ]


def test_container_with_its_own_namespace_sees_its_group_at_the_mount_point():
    assert folders(UNIFIED, "0::/\n", V2_MOUNT) == ["/sys/fs/cgroup"]


def test_container_on_v1_sees_its_group_mounted_as_the_root():
    assert folders("memory", "4:memory:/docker/4f5e\n", DOCKER_V1_MOUNT) == ["/sys/fs/cgroup/memory"]
    assert folders("memory", "4:memory:/docker/4f5e/inner\n", DOCKER_V1_MOUNT) == [
        "/sys/fs/cgroup/memory/inner",
        "/sys/fs/cgroup/memory",
    ]


@pytest.mark.parametrize("path", ["/../../kubepods/pod1", "/elsewhere"])
def test_a_group_outside_what_is_mounted_falls_back_to_the_mount_point(path):
    assert folders("memory", f"4:memory:{path}\n", DOCKER_V1_MOUNT) == ["/sys/fs/cgroup/memory"]


def test_a_controller_nobody_mounted_has_no_folders():
    assert folders("cpu", "4:memory:/x\n", DOCKER_V1_MOUNT) == []


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max\n", None), ("9223372036854771712\n", None), ("9223372036854710272\n", None), ("4294967296\n", 4 << 30)],
)
def test_memory_limit(text, limit):
    assert parse_memory_limit(text) == limit


@given(st.text())
def test_parsers_take_any_text(text):
    parse_memberships(text)
    parse_mounts(text)
    assert (parse_cpu_max(text) or 1) > 0
    assert (parse_memory_limit(text) or 1) > 0


def test_the_tightest_quota_of_nested_v2_groups_wins(tmp_path):
    system = make_tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/pod/box/cpu.max": "800000 100000\n",
            "sys/fs/cgroup/pod/cpu.max": "300000 100000\n",
        },
    )
    quota = read_cpu_quota(system)
    assert quota is not None
    assert quota.cores == 3.0
    assert quota.folder == system / "sys/fs/cgroup/pod"


def test_v1_quota_beside_an_empty_unified_hierarchy(tmp_path):
    group = "sys/fs/cgroup/cpu,cpuacct/batch"
    system = make_tree(
        tmp_path,
        {
            "proc/self/cgroup": V1_MEMBERSHIP,
            "proc/self/mountinfo": V1_MOUNTS,
            f"{group}/job7/cpu.cfs_quota_us": "-1\n",
            f"{group}/job7/cpu.cfs_period_us": "100000\n",
            f"{group}/cpu.cfs_quota_us": "250000\n",
            f"{group}/cpu.cfs_period_us": "100000\n",
        },
    )
    quota = read_cpu_quota(system)
    assert quota is not None
    assert quota.cores == 2.5


def test_memory_limits_of_v1_leave_out_cache_that_can_be_dropped(tmp_path):
    system = make_tree(
        tmp_path,
        {
            "proc/self/cgroup": V1_MEMBERSHIP,
            "proc/self/mountinfo": V1_MOUNTS,
            "sys/fs/cgroup/memory/batch/job7/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/batch/memory.limit_in_bytes": "1000\n",
            "sys/fs/cgroup/memory/batch/memory.usage_in_bytes": "900\n",
            "sys/fs/cgroup/memory/batch/memory.stat": "total_inactive_file 300\n",
        },
    )
    (limit,) = read_memory_limits(system)
    assert (limit.limit_bytes, limit.used_bytes, limit.available_bytes) == (1000, 600, 400)


def test_memory_limits_of_v2_come_from_every_level(tmp_path):
    system = make_tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/pod/box/memory.max": "max\n",
            "sys/fs/cgroup/pod/memory.max": "5000\n",
            "sys/fs/cgroup/pod/memory.current": "6000\n",
        },
    )
    (limit,) = read_memory_limits(system)
    assert limit.limit_bytes == 5000
    assert limit.available_bytes == 0


def test_without_control_groups_nothing_is_limited(tmp_path):
    assert read_cpu_quota(tmp_path) is None
    assert read_memory_limits(tmp_path) == ()
