"""``python -m loadtune.event_files FOLDER``: scalars from stdin to TensorBoard's event files in a folder.

A process of its own because it imports torch, whose writer this is. In: ``[[tag, step, value], …]`` as JSON.
"""

import json
import sys


def main() -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(log_dir=sys.argv[1]) as writer:
        for tag, step, value in json.load(sys.stdin):
            writer.add_scalar(tag, value, step)


if __name__ == "__main__":
    main()
