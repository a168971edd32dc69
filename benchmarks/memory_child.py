"""A fresh process for one piece of plain-PyTorch work: imports torch, waits for one order, answers, goes.

    (echo '{"work": "truth", "cell": "resnet50-bf16-sgd", "batch_size": 3300}'; sleep 60) | python memory_child.py

Exit status as in `memory_orders`: 0 it fits, 3 out of memory, 4 anything else. It is started ahead of its order, so
that importing torch costs no time on the device; no CUDA context exists before the order comes. An argument names the
cell whose model is worth initialising ahead as well.
"""

import os
import sys
import time
import traceback

from memory_grid import cell_named
from memory_orders import ERROR, FITS, OUT_OF_MEMORY, Order, Say, await_order, first_line, private_stdout


def run(order: Order, say: Say) -> int:
    """Do what is ordered and say how it went."""
    from memory_peers import PEERS
    from memory_train import is_oom
    from memory_work import WORK
    from peers_loop import LOOP

    started = time.monotonic()
    try:
        answer = (WORK | PEERS | LOOP)[order["work"]](order, say)
        say(answer=answer, seconds=time.monotonic() - started)
        return FITS
    except Exception as error:
        traceback.print_exc()
        say(error=first_line(error), seconds=time.monotonic() - started)
        return OUT_OF_MEMORY if is_oom(error) else ERROR


def main() -> None:
    say = private_stdout()
    from memory_train import build_ahead  # with it torch and torchvision: what takes seconds, done before the order

    if len(sys.argv) > 1:
        build_ahead(cell_named(sys.argv[1]))
    say(event="ready")
    status = run(await_order(), say)
    sys.stderr.flush()
    os._exit(status)  # at once: tearing CUDA down in Python's order takes longer and frees nothing more


if __name__ == "__main__":
    main()
