"""What tracing costs: the same small training step with and without `loadtune.trace_memory`, in turn.

    python benchmarks/trace_cost.py [--steps 30] [--rounds 5] [--width 256] [--device cpu]

``ratio`` is the median of the rounds: a traced step's time over an untraced one's. What a trace costs once, to look
for the tensors that are there at its start and at its end, is shown apart. Small steps have the worst ratio: the cost
is by line and by operation, not by element. Seen on a CPU with OMP_NUM_THREADS=1, torch 2.15:
5.2 at width 256 (3.1 ms a step, 4.2 to 6.1 in the rounds), 1.3 at 1024.
"""

import argparse
import statistics
import time

import torch
from torch import nn

import loadtune


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, steps: int) -> float:
    """Seconds a step."""
    started = time.perf_counter()
    for _ in range(steps):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if batch.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / steps


def main() -> None:
    given = arguments()
    layers = [layer for _ in range(4) for layer in (nn.Linear(given.width, given.width), nn.ReLU())]
    model = nn.Sequential(*layers).to(given.device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, given.width, device=given.device)
    train(model, optimizer, batch, given.steps)
    ratios = []
    for _ in range(given.rounds):
        plain = train(model, optimizer, batch, given.steps)
        started = time.perf_counter()
        with loadtune.trace_memory():
            traced = train(model, optimizer, batch, given.steps)
        fixed = time.perf_counter() - started - traced * given.steps
        after = train(model, optimizer, batch, given.steps)
        ratios.append(traced / plain)
        print(
            f"plain {plain * 1e3:.2f} ms, traced {traced * 1e3:.2f} ms, after {after * 1e3:.2f} ms, once {fixed:.2f} s"
        )
    print(f"ratio {statistics.median(ratios):.1f} (torch {torch.__version__}, {given.device}, width {given.width})")


if __name__ == "__main__":
    main()
