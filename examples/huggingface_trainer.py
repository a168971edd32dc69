"""A Hugging Face Trainer. It needs the packages transformers and accelerate.

Train:  python examples/huggingface_trainer.py --train
Tune:   python examples/huggingface_trainer.py
"""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import loadtune


class Texts(Dataset):
    """4,000 texts of 48 tokens; the class is the first token modulo 2."""

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        tokens = torch.randint(1, 1000, (48,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": int(tokens[0]) % 2}


def make_trainer(max_steps):
    config = BertConfig(
        vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="loadtune-example-"),
        per_device_train_batch_size=16,
        dataloader_num_workers=0,
        learning_rate=1e-4,
        max_steps=max_steps,
        save_strategy="no",
        report_to=[],
    )
    return Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=Texts())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", action="store_true", help="train for five steps, without tuning")
    parser.add_argument("--time-budget", type=float, default=120, help="seconds for tuning")
    parser.add_argument("--out", default="loadtune-results", help="folder for the results")
    options = parser.parse_args()
    trainer = make_trainer(max_steps=5)
    if options.train:
        print(trainer.train())
    else:
        job = loadtune.from_trainer(trainer)
        result = loadtune.tune(job, time_budget_s=options.time_budget, out=options.out)
        try:
            print(loadtune.export(result, "hf"))
        except loadtune.ResultError as error:  # no configuration was confirmed
            print(error)
