"""A Lightning module and its data module. It needs the package lightning.

Workers while it trains:        loadtune exec -- python examples/lightning_module.py
Batch size, workers, precision: loadtune run -- python examples/lightning_module.py
"""

import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    """1,024 signals of 1,024 values, read as a spectrogram; the class is the frequency."""

    def __len__(self):
        return 1024

    def __getitem__(self, index):
        noise = torch.randn(1024, generator=torch.Generator().manual_seed(index))
        wave = torch.sin(torch.arange(1024) * (0.2 + 0.05 * (index % 8))) + noise
        spectrogram = torch.stft(wave, 64, window=torch.hann_window(64), return_complex=True).abs()
        return spectrogram[None], index % 8


class Data(lightning.LightningDataModule):
    def setup(self, stage):
        self.signals = Signals()

    def train_dataloader(self):
        return DataLoader(self.signals, batch_size=32, shuffle=True)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d((16, 1)), nn.Flatten(), nn.Linear(256, 8)
        )

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    trainer = lightning.Trainer(
        max_epochs=int(sys.argv[1]) if sys.argv[1:] else 8, logger=False, enable_checkpointing=False
    )
    trainer.fit(Classifier(), Data())
    print(f"loss {trainer.callback_metrics['loss'].item():.3f}")
