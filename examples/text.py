"""Texts of different lengths. The collate function pads each batch to its longest text; a batch is a dict.

Workers while it trains:        loadtune exec -- python examples/text.py
Batch size, workers, precision: loadtune run -- python examples/text.py
The same by two functions:      loadtune run --loader examples/text.py:make_loader --model examples/text.py:make_model \
                                    --optimizer adamw

The model takes the dict's keys as keywords and returns an object with `.loss`, as Hugging Face models do.
The last command therefore needs no loss function.
"""

import sys
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

WORDS, CLASSES = 1000, 4


class Texts(Dataset):
    """800 texts of 4 to 96 tokens. The class is the first token modulo 4."""

    def __len__(self):
        return 800

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        length = int(4 + 92 * torch.rand(1, generator=generator) ** 2)
        tokens = torch.randint(1, WORDS, (length,), generator=generator)
        return tokens, int(tokens[0]) % CLASSES


def collate(samples):
    texts, labels = zip(*samples, strict=True)
    input_ids = pad_sequence(texts, batch_first=True)
    return {"input_ids": input_ids, "attention_mask": (input_ids > 0).long(), "labels": torch.tensor(labels)}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 32, padding_idx=0)
        layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, input_ids, attention_mask, labels):
        hidden = self.encoder(self.embedding(input_ids), src_key_padding_mask=attention_mask == 0)
        logits = self.head(hidden[:, 0])
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


def make_loader():
    return DataLoader(Texts(), batch_size=32, shuffle=True, collate_fn=collate)


def make_model():
    return Classifier()


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader, model = make_loader(), make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(int(sys.argv[1]) if sys.argv[1:] else 8):
        for batch in loader:
            loss = model(**{name: value.to(device) for name, value in batch.items()}).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
