import os
import subprocess
import sys
from pathlib import Path

import pytest

LEAVES_AS_ITS_WORKERS_DIE = """
import multiprocessing, os, signal, sys, time
from pathlib import Path
from loadtune.training.__main__ import leave, watch_lifeline

def told(*_):
    raise RuntimeError("a worker was killed")  # as the DataLoader's handler does

watch_lifeline(int(sys.argv[1]), Path(sys.argv[2]))
held = multiprocessing.get_context("spawn").Semaphore()
os.write(1, held._semlock.name.encode() + b"\\n")
for _ in range(3):
    if os.fork() == 0:
        open(f"/dev/shm/torch_{os.getpid()}_planted", "w").close()
        os.write(1, b"%d\\n" % os.getpid())  # in one piece
        time.sleep(60)
signal.signal(signal.SIGCHLD, told)
os.write(1, b"ready\\n")
try:
    time.sleep(60)
except RuntimeError:
    leave(3)
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory has no folder here")
@pytest.mark.timeout(60)
def test_a_process_whose_workers_the_lifeline_ends_leaves_no_segment_and_no_temporary_file(tmp_path):
    scratch = tmp_path / "scratch"
    (scratch / "pymp-planted").mkdir(parents=True)
    read, lifeline = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", LEAVES_AS_ITS_WORKERS_DIE, str(read), str(scratch)],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(read,),
        start_new_session=True,
    ) as process:
        semaphore = Path("/dev/shm") / process.stdout.readline().strip().replace("/", "sem.")
        said = {process.stdout.readline().strip() for _ in range(4)}
        planted = [Path(f"/dev/shm/torch_{pid}_planted") for pid in said - {"ready"}]
        assert len(planted) == 3
        assert all(path.exists() for path in (semaphore, *planted))
        os.close(lifeline)
        os.close(read)
        process.wait()
        process.stdout.read()  # the tracker has it open until it ends
    assert not any(path.exists() for path in (semaphore, *planted))
    assert not scratch.exists()
