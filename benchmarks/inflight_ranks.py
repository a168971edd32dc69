"""One rank of a training whose samples wait, for torchrun or another launcher; what it saw, and seconds.

    torchrun --nproc-per-node 2 benchmarks/inflight_ranks.py [--how ddp lightning accelerate] [--steps 1200]
        [--sample 0.006] [--step 0.01] [--workers 1] [--epochs 1] [--slow RANK] [--short STEPS] [--die-at STEP]

``--slow``: a sample of this rank takes twice the time. ``--short``: rank 0 has so many batches less (`Join`).
``--die-at``: rank 1 kills itself there in its first life. A line for each way and rank: digest of its indices and
losses, seconds of the loop.
"""

import argparse
import os
import signal
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from inflight_jobs import BATCH, Samples, Training
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

NAMES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))


class Rank(Training):
    """The training of `inflight_jobs.py`, as one rank of several."""

    def __init__(self, given, rank, size):
        super().__init__(given)
        self.rank, self.size = rank, size
        self.data = Samples(given.steps * BATCH * size, given.sample * (2 if rank == given.slow else 1))

    def loader(self, **settings):
        return DataLoader(self.data, BATCH, num_workers=self.given.workers, **settings)


def ddp(run):
    given = run.given
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=run.rank, world_size=run.size)
    run.model = DistributedDataParallel(run.model)
    sampler = DistributedSampler(run.data, run.size, run.rank, shuffle=True)
    loader, most = run.loader(sampler=sampler), given.steps - (given.short if run.rank == 0 else 0)
    with run.model.join() if given.short else nullcontext():
        for epoch in range(given.epochs):
            sampler.set_epoch(epoch)
            for number, batch in enumerate(loader):
                if number == most:
                    break
                if number == given.die_at and run.rank == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
                    os.kill(os.getpid(), signal.SIGKILL)
                run.step(batch)


def accelerate(run):
    from accelerate import Accelerator

    run.model, loader = Accelerator(cpu=True).prepare(run.model, run.loader(shuffle=True))
    run.epochs(run.given.epochs, loader)


def lightning(run):
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = run.model

        def training_step(self, batch, _):
            return run.loss(batch)

        def configure_optimizers(self):
            return run.optimizer()

    Trainer(
        accelerator="cpu", devices=run.size, strategy="ddp", max_epochs=run.given.epochs, logger=False, barebones=True,
    ).fit(Module(), run.loader(shuffle=True))  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=("ddp", "lightning", "accelerate"), nargs="+", default=["ddp"])
    for name, value in (("steps", 1200), ("workers", 1), ("epochs", 1), ("slow", -1), ("short", 0), ("die-at", -1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--sample", type=float, default=0.006)
    parser.add_argument("--step", type=float, default=0.010)
    given = parser.parse_args()
    rank, size = next((int(os.environ[one]), int(os.environ[all_])) for one, all_ in NAMES if one in os.environ)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29655")
    torch.set_num_threads(1)
    for how in given.how:
        run, begun = Rank(given, rank, size), time.perf_counter()
        {"ddp": ddp, "lightning": lightning, "accelerate": accelerate}[how](run)
        line = f"{how}: rank {rank} {run.seen.hexdigest()[:16]} {time.perf_counter() - begun:.1f}\n"
        os.write(1, line.encode())  # in one piece: the other rank writes to the same pipe
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
