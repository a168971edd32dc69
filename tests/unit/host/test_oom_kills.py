"""The kernel's count of processes it killed for memory, from literal files of each kind of system."""

from pathlib import Path

import pytest

from loadtune.host.memory import read_oom_kills

VMSTAT = "nr_free_pages 12\noom_kill 7\n"
V2_MOUNT = "25 22 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1_MOUNT = "30 22 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def system(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def v2(events: str | None) -> dict[str, str]:
    files = {"proc/self/cgroup": "0::/job\n", "proc/self/mountinfo": V2_MOUNT, "proc/vmstat": VMSTAT}
    return files if events is None else files | {"sys/fs/cgroup/job/memory.events": events}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("low 0\nhigh 0\nmax 5\noom 3\noom_kill 2\noom_group_kill 1\n", 2),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n", 4),
        ("oom_kill_disable 0\nunder_oom 0\n", None),  # before Linux 4.13
        ("", None),
    ],
)
def test_each_kind_of_file(tmp_path: Path, text: str, count: int | None) -> None:
    assert read_oom_kills(system(tmp_path, {"proc/vmstat": text})) == count


def test_the_own_groups_count_comes_before_the_machines(tmp_path: Path) -> None:
    assert read_oom_kills(system(tmp_path, v2("oom 1\noom_kill 0\n"))) == 0


def test_a_v1_group_counts_its_own(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/job/inner\n",
        "proc/self/mountinfo": V1_MOUNT,
        "proc/vmstat": VMSTAT,
        "sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill 9\n",
        "sys/fs/cgroup/memory/job/inner/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    }
    assert read_oom_kills(system(tmp_path, files)) == 2


def test_without_a_group_the_machine_counts_and_without_that_nothing_does(tmp_path: Path) -> None:
    assert read_oom_kills(system(tmp_path, v2(None))) == 7
    (tmp_path / "proc/vmstat").unlink()
    assert read_oom_kills(tmp_path) is None
