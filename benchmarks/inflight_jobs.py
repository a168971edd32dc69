"""Training scripts of some seconds, each as somebody would write it.

    python benchmarks/inflight_jobs.py [JOB ...] [--table] [--steps 1200] [--sample 0.006] [--step 0.010]

A sample sleeps, a step sleeps, and a small model learns, so that a job prints what must be the same with and without
loadtune: a digest of all losses and of the samples in their order, the random state at the end; and seconds without
imports. The tests run short jobs.

``--table``: each job runs once plain and once under `loadtune exec`, each in its own process, for a Markdown table.
*Same* says whether what they printed is equal but for seconds. *Hook* is the time of the tuner a step, with switches.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

BATCH = 16


class Samples(Dataset):
    """Pairs of a vector and its index. ``cpu``: works for its time instead of sleeping."""

    def __init__(self, length, seconds, cpu=False):
        self.length, self.seconds, self.cpu = length, seconds, cpu

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        until = time.thread_time() + self.seconds
        if not self.cpu:
            time.sleep(self.seconds)
        while self.cpu and time.thread_time() < until:
            pass
        return torch.sin(torch.arange(4) * float(index)), index


class KillsItself(Samples):
    """In the second worker, which the user did not ask for."""

    def __getitem__(self, index):
        info = get_worker_info()
        if info is not None and info.id == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class RaisesAt(Samples):
    def __getitem__(self, index):
        if index == self.length - BATCH - 3:
            raise ValueError(f"bad sample {index}")
        return super().__getitem__(index)


class Zipped(Samples):
    def __init__(self, length, seconds):
        super().__init__(length, seconds)
        path = Path(tempfile.mkdtemp()) / "data.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for index in range(64):
                archive.writestr(str(index), str(index) * 9000)
        self.archive = zipfile.ZipFile(path)

    def __getitem__(self, index):
        text = self.archive.read(str(index % 64)).decode()
        assert text == str(index % 64) * 9000
        return super().__getitem__(index)


class Handle(Samples):
    def __init__(self, length, seconds):
        super().__init__(length, seconds)
        path = Path(tempfile.mkdtemp()) / "data"
        path.write_bytes(b"".join(index.to_bytes(4, "big") for index in range(length)))
        self.handle = os.open(path, os.O_RDONLY)

    def __getitem__(self, index):
        os.lseek(self.handle, 4 * index, os.SEEK_SET)
        time.sleep(0.0001)
        assert int.from_bytes(os.read(self.handle, 4), "big") == index
        return super().__getitem__(index)


class Staged(Samples):
    """The loop changes what it gives."""

    stage = 0

    def __getitem__(self, index):
        vector, index = super().__getitem__(index)
        return vector + self.stage, index


class InfiniteDataLoader(DataLoader):
    """As in YOLO's training: the sampler repeats for ever, and each epoch takes its share."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Repeated:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class Training:
    """A model, its steps, and the digest of all they saw."""

    def __init__(self, given):
        self.given, self.seen = given, hashlib.sha256()
        torch.manual_seed(5)
        self.model = torch.nn.Linear(4, 1)

    def optimizer(self):
        return torch.optim.SGD(self.model.parameters(), 0.01)  # importing torch's takes seconds

    def loss(self, batch):
        vectors, indices = batch
        loss = (self.model(vectors) - indices[:, None] / self.given.steps / BATCH).square().mean()
        self.seen.update(f"{indices.tolist()} {loss.item()!r}".encode())
        time.sleep(self.given.step)
        return loss

    def step(self, batch):
        self.model.zero_grad()
        self.loss(batch).backward()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= 0.01 * parameter.grad

    def loader(self, kind=Samples, share=1, made=DataLoader, **settings):
        data = kind(self.given.steps * BATCH // share, self.given.sample)
        return made(data, BATCH, **{"num_workers": 1, "shuffle": True} | settings)

    def epochs(self, number, loader):
        for _ in range(number):
            for batch in loader:
                self.step(batch)


def plain(run):
    run.epochs(1, run.loader())


def no_workers(run):
    run.epochs(1, run.loader(num_workers=0))


def persistent(run):
    run.epochs(3, run.loader(share=3, persistent_workers=True))


def early_break(run):
    loader = run.loader(num_workers=1)
    for part in (2, 3):
        for number, batch in enumerate(loader):
            if number == run.given.steps // part:
                break
            run.step(batch)


def two_loaders(run):
    first, second = run.loader(share=2), run.loader(share=2)
    for one, other in zip(first, second, strict=True):
        run.step(one)
        run.step(other)


def infinite(run):
    run.epochs(2, run.loader(share=2, made=InfiniteDataLoader))


def spawn(run):
    run.epochs(3, run.loader(share=3, multiprocessing_context="spawn"))


def forkserver(run):
    run.epochs(3, run.loader(share=3, multiprocessing_context="forkserver"))


def oversubscribed(run):
    data = Samples(run.given.steps * BATCH, run.given.sample, cpu=True)
    run.epochs(1, DataLoader(data, BATCH, num_workers=6))


def new_loaders(run):
    """Made anew each epoch, with a validation."""
    for _ in range(3):
        run.epochs(1, run.loader(share=4))
        with torch.no_grad():
            for batch in run.loader(share=16, shuffle=False):
                run.loss(batch)


def lightning(run, **settings):
    import logging
    import warnings

    import lightning as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = run.model

        def training_step(self, batch, _):
            return run.loss(batch)

        def configure_optimizers(self):
            return run.optimizer()

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", devices=1, **quiet)
    trainer.fit(Module(), run.loader(share=2, **settings))


def lightning_persistent(run):
    lightning(run, persistent_workers=True)


def accelerate(run, dispatch=False):
    from accelerate import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    model, optimizer, loader = accelerator.prepare(run.model, run.optimizer(), run.loader())
    run.model = model
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(run.loss(batch))
        optimizer.step()


def accelerate_dispatch(run):
    accelerate(run, dispatch=True)


def trainer(run):
    from transformers import Trainer, TrainingArguments

    class Own(Trainer):
        def compute_loss(self, model, inputs, **_):
            return run.loss((inputs["vectors"], inputs["indices"]))

    def collate(samples):
        vectors, indices = zip(*samples, strict=True)
        return {"vectors": torch.stack(vectors), "indices": torch.tensor(indices)}

    arguments = TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=BATCH, num_train_epochs=1, gradient_accumulation_steps=4,
        dataloader_num_workers=1, report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
        remove_unused_columns=False, logging_strategy="no", dataloader_pin_memory=False,
    )  # fmt: skip
    data = Samples(run.given.steps * BATCH, run.given.sample)
    Own(model=run.model, args=arguments, train_dataset=data, data_collator=collate).train()


def zip_file(run):
    run.epochs(1, run.loader(Zipped, num_workers=0))


def handle(run):
    run.epochs(1, run.loader(Handle, num_workers=1))


def stage(run):
    """The loop changes the dataset in the middle of an epoch; without workers the next batch shows it."""
    loader = run.loader(Staged, num_workers=0)
    for number, batch in enumerate(loader):
        if number == run.given.steps * 3 // 4:
            loader.dataset.stage = 2
        run.seen.update(str(batch[0].sum().item()).encode())
        run.step(batch)


def killed(run):
    run.epochs(1, run.loader(KillsItself))


def raises(run):
    try:
        run.epochs(1, run.loader(RaisesAt, shuffle=False))
    except ValueError as error:
        run.seen.update(str(error).splitlines()[-1].encode())


JOBS = {
    each.__name__: each
    for each in (
        plain, no_workers, persistent, early_break, two_loaders, infinite, new_loaders, spawn, forkserver, lightning,
        lightning_persistent, trainer, accelerate, accelerate_dispatch, oversubscribed, zip_file, handle, stage, killed,
        raises,
    )
}  # fmt: skip


HEAD = ("job", "seconds without → with", "workers", "same", "hook µs", "said")


def ended(command):
    """What it printed, and what was said of it. None: it failed."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return None, done.stderr.strip().splitlines()[-1:]
    return done.stdout.split()[-3:], [line for line in done.stderr.splitlines() if line.startswith("loadtune: ")]


def row(job, sizes):
    command = [sys.executable, __file__, job, *sizes]
    plain, trouble = ended(command)
    if plain is None:
        return job, f"not run: {trouble}"
    with tempfile.TemporaryDirectory() as folder:
        tuned, said = ended([sys.executable, "-m", "loadtune", "exec", "--out", folder, "--", *command])
        if tuned is None:
            return job, f"{plain[2]} → failed: {said}"
        loaders = json.loads((Path(folder) / "inflight.json").read_text())["loaders"]
    workers = "; ".join(" → ".join(map(str, numbers(loader))) for loader in loaders)
    hook = "; ".join(f"{each['hook_s'] / max(1, each['num_batches']) * 1e6:.0f}" for each in loaders)
    same = "yes" if plain[:2] == tuned[:2] else "NO"
    return job, f"{float(plain[2]):.0f} → {float(tuned[2]):.0f}", workers, same, hook, (said or [""])[0][10:]


def show(*cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def numbers(loader):
    """Workers one after another, each once."""
    seen = [loader["own_workers"]]
    for switch in loader["switches"]:
        if switch["num_workers"] != seen[-1]:
            seen.append(switch["num_workers"])
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--sample", type=float, default=0.006, help="seconds")
    parser.add_argument("--step", type=float, default=0.010, help="seconds")
    given = parser.parse_args()
    jobs = given.jobs or list(JOBS)
    if given.table:
        sizes = [f"--{name}={getattr(given, name)}" for name in ("steps", "sample", "step")]
        show(*HEAD)
        show(*("---" for _ in HEAD))
        for job in jobs:
            show(*row(job, sizes))
        return
    torch.set_num_threads(1)
    for job in jobs:
        begun, run = time.monotonic(), Training(given)
        JOBS[job](run)
        print(run.seen.hexdigest()[:16], torch.rand(1).item(), f"{time.monotonic() - begun:.2f}")


if __name__ == "__main__":
    main()
