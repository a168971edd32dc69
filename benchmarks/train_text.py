"""Trains on texts, each tokenized when it is read, as somebody would write it: nothing of loadtune is in it."""

import os
import random
import sys
import time

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerFast

TEXTS, WORDS, LENGTH = int(os.environ.get("TEXTS", "200000")), 5_000, 256


class Texts(Dataset):
    def __init__(self, texts, labels, tokenizer):
        self.texts, self.labels, self.tokenizer = texts, labels, tokenizer

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        made = self.tokenizer(
            self.texts[index], padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"
        )
        return made["input_ids"][0], self.labels[index]


def make_tokenizer():
    words = {"[PAD]": 0, "[UNK]": 1} | {f"word{number}": 2 + number for number in range(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def make_dataset():
    chance = random.Random(0)
    words = [f"word{number}" for number in range(WORDS)]
    sentences = [" ".join(chance.choices(words, k=chance.randrange(20, 45))) for _ in range(5_000)]
    texts = [" ".join(chance.choices(sentences, k=7)) for _ in range(TEXTS)]
    return Texts(texts, [number % 10 for number in range(TEXTS)], make_tokenizer())


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(2 + WORDS, 256)
        self.head = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, tokens):
        return self.head(self.embedding(tokens).mean(1))


def main(num_epochs):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    dataset, pinned = make_dataset(), device.type == "cuda"
    loader = DataLoader(dataset, 256, shuffle=True, num_workers=4, pin_memory=pinned)
    for epoch in range(num_epochs):
        began = time.perf_counter()
        for tokens, labels in loader:
            tokens, labels = tokens.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16):
                loss = nn.functional.cross_entropy(model(tokens), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        print(f"epoch {epoch}: {seconds:.1f} s, {TEXTS / seconds:,.0f} texts/s", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 4)
