import os
import subprocess
import sys
from pathlib import Path

import pytest

LEAVES_AS_ITS_WORKER_DIES = """
import os, sys, time
from loadtune.bench.lifeline import leave, watch_lifeline
watch_lifeline(int(sys.argv[1]))
worker = os.fork()
if worker == 0:
    open(f"/dev/shm/torch_{os.getpid()}_planted", "w").close()
    print(os.getpid(), flush=True)
    time.sleep(60)
os.waitpid(worker, 0)
leave(3)
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory has no folder here")
@pytest.mark.timeout(60)
def test_a_process_whose_worker_the_lifeline_ends_leaves_no_segment():
    read, lifeline = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", LEAVES_AS_ITS_WORKER_DIES, str(read)],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(read,),
        start_new_session=True,
    ) as process:
        planted = Path(f"/dev/shm/torch_{int(process.stdout.readline())}_planted")
        assert planted.exists()
        os.close(lifeline)
        os.close(read)
        process.wait()
    assert not planted.exists()
