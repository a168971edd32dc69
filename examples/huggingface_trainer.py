"""A language model of Transformers, trained with its Trainer. It needs transformers and accelerate.

Workers while it trains:        loadtune exec -- python examples/huggingface_trainer.py
Batch size, workers, precision: loadtune run -- python examples/huggingface_trainer.py

The model is small and has random weights, and a token is a byte, so nothing is downloaded. For a model and tokenizer of
yours, use `from_pretrained`.
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

LENGTH = 64


class Pieces(Dataset):
    """A text, cut into pieces of `LENGTH` tokens: here 1,000 short sentences."""

    def __init__(self):
        animals = ("cat", "dog", "fox", "hen", "owl")
        sentences = (f"{number}: the {animals[number % 5]} saw the {animals[number % 3]}.\n" for number in range(1000))
        self.text = "".join(sentences).encode()

    def __len__(self):
        return len(self.text) // LENGTH

    def __getitem__(self, index):
        tokens = torch.tensor(list(self.text[index * LENGTH : (index + 1) * LENGTH]))
        return {"input_ids": tokens, "labels": tokens}


def make_trainer():
    config = GPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None
    )
    arguments = TrainingArguments(
        output_dir=Path(tempfile.gettempdir()) / "loadtune-examples" / "trainer",
        per_device_train_batch_size=16,
        dataloader_num_workers=0,
        learning_rate=1e-4,
        num_train_epochs=int(sys.argv[1]) if sys.argv[1:] else 4,
        save_strategy="no",
        report_to=[],
    )
    return Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Pieces())


if __name__ == "__main__":
    print(make_trainer().train())
