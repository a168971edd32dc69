"""A language model of Transformers, trained on a text file with its Trainer. It needs transformers and accelerate.

The model is small and has random weights, and a token is a byte, so nothing is downloaded. For a model and tokenizer of
yours, use `from_pretrained`.

Train:  python examples/huggingface_trainer.py
Tune:   loadtune run -- python examples/huggingface_trainer.py
"""

import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

TEXT = Path(tempfile.gettempdir()) / "loadtune-examples" / "text.txt"
LENGTH = 64


def write_text() -> None:
    """600 short sentences, written once."""
    if TEXT.exists():
        return
    animals = ("cat", "dog", "fox", "hen", "owl")
    lines = (f"{number}: the {animals[number % 5]} saw the {animals[number % 3]}.\n" for number in range(600))
    TEXT.parent.mkdir(parents=True, exist_ok=True)
    part = TEXT.with_suffix(".part")
    part.write_text("".join(lines), "utf-8")
    part.replace(TEXT)


class Pieces(Dataset):
    """A text file, cut into pieces of `LENGTH` tokens."""

    def __init__(self, path):
        self.text = path.read_bytes()

    def __len__(self):
        return len(self.text) // LENGTH

    def __getitem__(self, index):
        tokens = torch.tensor(list(self.text[index * LENGTH : (index + 1) * LENGTH]))
        return {"input_ids": tokens, "labels": tokens}


def make_trainer():
    write_text()
    config = GPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None
    )
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="loadtune-example-"),
        per_device_train_batch_size=16,
        dataloader_num_workers=0,
        learning_rate=1e-4,
        num_train_epochs=1,
        save_strategy="no",
        report_to=[],
    )
    return Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Pieces(TEXT))


if __name__ == "__main__":
    print(make_trainer().train())
