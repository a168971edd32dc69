"""Exported forms in the hands of the libraries they are for; those that are not installed are left out."""

import pytest
import torch
import training_workloads
from page_rig import imported, on_cpu
from torch import nn
from torch.utils.data import DataLoader, Subset

from loadtune import export

LOSS = nn.functional.cross_entropy


class Net(nn.Module):
    """Remembers in which type it computed, and the sizes of its batches. With labels it answers as a Trainer asks."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.linear = nn.Linear(4 * 36, training_workloads.NUM_CLASSES)
        self.sizes = []

    def forward(self, images, labels=None):
        self.sizes.append(len(images))
        outputs = self.linear(self.conv(images).flatten(1))
        self.dtype = outputs.dtype
        return outputs if labels is None else {"loss": LOSS(outputs, labels)}


FEW = Subset(training_workloads.Images(), range(20))


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_lightning_trains_with_its_arguments(tmp_path, precision, dtype):
    pl = pytest.importorskip("lightning.pytorch")
    tuned = imported(export(on_cpu(precision=precision), "lightning"), tmp_path)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, _):
            return LOSS(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 1}
    module = Module()
    pl.Trainer(**tuned.TRAINER_KWARGS, **quiet).fit(module, datamodule=tuned.TunedData(FEW))
    assert module.net.sizes == [8, 8]
    assert module.net.dtype == dtype


class Rows(training_workloads.Images):
    """As a Trainer's collator wants its samples."""

    def __getitem__(self, index):
        images, label = super().__getitem__(index)
        return {"images": images, "labels": label}


@pytest.mark.parametrize(
    ("optimizer", "made", "momentum"), [("sgd", torch.optim.SGD, 0.9), ("adamw", torch.optim.AdamW, None)]
)
def test_a_trainer_takes_its_arguments(tmp_path, optimizer, made, momentum):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    result = on_cpu(precision="bf16", optimizer=optimizer, fused=optimizer == "adamw", num_workers=1)
    given = imported(export(result, "hf"), tmp_path).TRAINING_ARGUMENTS
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=2, report_to="none", save_strategy="no", **given
    )
    model = Net()
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Subset(Rows(), range(20)))
    loader = trainer.get_train_dataloader()
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (1, 3, True)
    assert len(loader) == 2  # the rest of 4 is dropped
    trainer.train()
    assert model.sizes == [8, 8]
    assert model.dtype == torch.bfloat16
    assert type(trainer.optimizer.optimizer) is made
    defaults = trainer.optimizer.optimizer.defaults
    assert (defaults.get("momentum"), bool(defaults.get("fused"))) == (momentum, optimizer == "adamw")


@pytest.mark.parametrize("compiled", [False, True])
def test_accelerate_takes_its_arguments(tmp_path, compiled):
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # one a process, else
    tuned = imported(export(on_cpu(precision="bf16", compiled=compiled), "accelerate"), tmp_path)
    accelerator = accelerate.Accelerator(**tuned.ACCELERATOR_KWARGS)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(FEW, shuffle=True, drop_last=True, **tuned.LOADER_KWARGS)
    if compiled:
        assert accelerator.state.dynamo_plugin.dynamic is False
        accelerator.state.dynamo_plugin.backend = accelerate.utils.DynamoBackend.EAGER
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    assert hasattr(prepared, "_orig_mod") is compiled
    for images, targets in loader:
        accelerator.backward(LOSS(prepared(images), targets))
        optimizer.step()
    assert model.sizes == [8, 8]
    assert model.dtype == torch.bfloat16
