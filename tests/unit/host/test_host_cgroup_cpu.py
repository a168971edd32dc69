"""A control group's account of CPU time: texts of both versions, which group is asked, what is made of it."""

import pytest

from loadtune.host.cpu import GroupCpu, accounting_folder, group_counter
from loadtune.host.sensing import Missing

V2_STAT = """usage_usec 2500000
user_usec 1700000
system_usec 800000
nr_periods 120
nr_throttled 17
throttled_usec 900000
"""
V1_STAT = "nr_periods 120\nnr_throttled 17\nthrottled_time 900000000\n"
V2_MOUNT = "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1_MOUNTS = (
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n"
)


def system_with(root, groups, mounts, **files):
    """A file system with these texts; ``files`` by their path below the mount of all groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text(mounts)
    for path, text in files.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def v2(root, stat, quota="max 100000\n"):
    return system_with(root, "0::/box\n", V2_MOUNT, **{"box/cpu.stat": stat, "box/cpu.max": quota})


def test_v1_accounts_are_found_where_cpuacct_is_mounted_apart(tmp_path):
    files = {"cpu/box/cpu.stat": V1_STAT, "cpuacct/box/cpuacct.usage": "4000000000\n"}
    system = system_with(tmp_path, "2:cpuacct:/box\n1:cpu:/box\n", V1_MOUNTS, **files)
    counter = group_counter(system / "sys/fs/cgroup/cpu/box", system)
    assert counter is not None
    assert counter() == 4.0


def test_what_a_group_used_and_waited_is_of_the_time_between_two_looks(tmp_path):
    probe = GroupCpu(v2(tmp_path, V2_STAT, quota="150000 100000\n"))
    assert probe.look(10.0) == {}
    later = V2_STAT.replace("usage_usec 2500000", "usage_usec 5500000").replace("nr_throttled 17", "nr_throttled 21")
    (tmp_path / "sys/fs/cgroup/box/cpu.stat").write_text(later.replace("900000\n", "1400000\n"))
    seen = probe.look(12.0)
    assert seen["cgroup_cpu_cores"] == pytest.approx(1.5)
    assert seen["num_cpu_throttles"] == 4
    assert seen["cpu_throttled_s"] == pytest.approx(0.5)


def test_never_held_back_is_a_measured_zero(tmp_path):
    probe = GroupCpu(v2(tmp_path, V2_STAT))
    probe.look(10.0)
    assert probe.look(11.0) == {"cgroup_cpu_cores": 0.0, "num_cpu_throttles": 0, "cpu_throttled_s": 0.0}


def test_what_a_group_does_not_count_has_its_reason(tmp_path):
    probe = GroupCpu(v2(tmp_path, "usage_usec 1000000\n"))
    for now_s in (10.0, 11.0):
        seen = probe.look(now_s)
        assert isinstance(seen["num_cpu_throttles"], Missing)
    assert seen["cgroup_cpu_cores"] == 0.0


def test_a_machine_without_groups_has_its_reason(tmp_path):
    seen = GroupCpu(tmp_path).look(10.0)
    assert set(seen) == set(GroupCpu.figures)
    assert all("control group" in missing.reason for missing in seen.values())


def test_the_group_asked_is_the_one_that_binds(tmp_path):
    """A parent's quota holds its children back, and the parent counts it."""
    files = {
        "pod/cpu.max": "200000 100000\n",
        "pod/cpu.stat": V2_STAT,
        "pod/box/cpu.max": "max 100000\n",
        "pod/box/cpu.stat": V2_STAT,
    }
    system = system_with(tmp_path, "0::/pod/box\n", V2_MOUNT, **files)
    assert accounting_folder(system) == tmp_path / "sys/fs/cgroup/pod"


def test_of_two_versions_side_by_side_the_one_that_counts_throttling_is_asked(tmp_path):
    mounts = V1_MOUNTS + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    files = {"cpu/cpu.stat": V1_STAT, "unified/cpu.stat": "usage_usec 1\n"}
    system = system_with(tmp_path, "1:cpu:/\n0::/\n", mounts, **files)
    assert accounting_folder(system) == tmp_path / "sys/fs/cgroup/cpu"
