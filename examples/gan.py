"""A GAN: two models and two optimizers, in its own training step.

Train:  python examples/gan.py
Tune:   loadtune run --loader examples/gan.py:make_loader --step examples/gan.py:make_step
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

NOISE = 32


class Digits(Dataset):
    """4,000 images of 32 × 32 pixels with a bright bar."""

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        image = torch.rand(1, 32, 32, generator=torch.Generator().manual_seed(index)) * 0.2
        image[:, index % 32, 4:28] += 0.8
        return nn.functional.avg_pool2d(image, 3, stride=1, padding=1) * 2 - 1


def make_loader():
    return DataLoader(Digits(), batch_size=32, shuffle=True, drop_last=True)


def make_step(device):
    """Called once. The step that it returns gets batches that are on the device already."""
    generator = nn.Sequential(
        nn.Linear(NOISE, 32 * 8 * 8), nn.ReLU(), nn.Unflatten(1, (32, 8, 8)),
        nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1), nn.Tanh(),
    ).to(device)  # fmt: skip
    critic = nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, stride=2), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.LazyLinear(1),
    ).to(device)  # fmt: skip
    critic(torch.zeros(1, 1, 32, 32, device=device))  # the lazy layer gets its size
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def step(real):
        fake = generator(torch.randn(len(real), NOISE, device=device))
        critic_optimizer.zero_grad()
        loss = nn.functional.softplus(-critic(real)).mean() + nn.functional.softplus(critic(fake.detach())).mean()
        loss.backward()
        critic_optimizer.step()
        generator_optimizer.zero_grad()
        nn.functional.softplus(-critic(fake)).mean().backward()
        generator_optimizer.step()
        return loss.detach()  # loadtune checks it for NaN

    return step


if __name__ == "__main__":
    step = make_step(torch.device("cpu"))
    for number, images in zip(range(5), make_loader(), strict=False):
        print(f"step {number}: the critic's loss {step(images).item():.3f}")
