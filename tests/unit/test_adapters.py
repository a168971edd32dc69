"""Jobs made from a Lightning module and a Hugging Face Trainer, as the training process receives them."""

import warnings

import cloudpickle
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loadtune.errors import UsageError, WorkloadError
from loadtune.workload.adapters import from_lightning, from_trainer
from loadtune.workload.user_code import cause

BATCH = (torch.rand(4, 3), torch.rand(4, 1))


def unpickled(job):
    """(model, optimizer function, loss function), pickled together as for the training process."""
    return cloudpickle.loads(cloudpickle.dumps((job.model, job.optimizer, job.loss)))


def assert_optimizer_belongs_to(optimizer, model):
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in model.parameters()}


@pytest.mark.parametrize("adapter", [from_lightning, from_trainer])
def test_a_plain_model_is_refused_with_what_is_expected(adapter):
    with pytest.raises(UsageError, match=r"got a value of type Linear; it takes a .*Job\(loader"):
        adapter(nn.Linear(3, 1))


class TestLightning:
    @pytest.fixture
    def module(self):
        """Of a class that each form of ``configure_optimizers`` and ``training_step`` can be set on."""
        lightning = pytest.importorskip("lightning")

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(3, 1)
                self.form = "plain"

            def training_step(self, batch, batch_idx):
                loss = nn.functional.mse_loss(self.layer(batch[0]), batch[1])
                self.log("loss", loss, prog_bar=True)
                return loss

            def configure_optimizers(self):
                optimizer = torch.optim.AdamW(self.parameters(), lr=0.125)
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
                return {
                    "plain": optimizer,
                    "dict": {"optimizer": optimizer, "lr_scheduler": scheduler},
                    "dicts": [{"optimizer": optimizer}],
                    "schedulers": ([optimizer], [scheduler]),
                    "two": [optimizer, torch.optim.SGD(self.parameters())],
                    "none": None,
                }[self.form]

            def train_dataloader(self):
                return DataLoader(TensorDataset(*BATCH), batch_size=2, num_workers=1)

        return Module()

    @pytest.mark.parametrize("form", ["plain", "dict", "dicts", "schedulers"])
    def test_the_optimizer_steps_the_unpickled_model(self, module, form):
        module.form = form
        model, make_optimizer, compute_loss = unpickled(from_lightning(module))
        optimizer = make_optimizer(model.parameters())
        assert_optimizer_belongs_to(optimizer, model)
        assert optimizer.defaults["lr"] == 0.125
        before = model.layer.weight.detach().clone()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # logging without a trainer says nothing
            compute_loss(model, BATCH).backward()
        optimizer.step()
        assert not torch.equal(before, model.layer.weight)
        assert make_optimizer([]) is not optimizer

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("form", "two", "2 optimizers.*step=make_step"),
            ("form", "none", "NoneType.*step=make_step"),
            ("automatic_optimization", False, "step=make_step"),
            ("train_dataloader", lambda: [DataLoader([1]), DataLoader([2])], "returned a value of type list"),
            ("configure_optimizers", lambda: 1 / 0, "configure_optimizers of Module raised"),
        ],
    )
    def test_what_cannot_be_tuned_is_refused(self, module, name, value, said):
        setattr(module, name, value)
        with pytest.raises(UsageError, match=said):
            from_lightning(module)

    def test_a_step_may_go_without_an_index_and_return_a_dict_but_not_without_a_loss(self, module):
        type(module).training_step = lambda self, batch: {"loss": self.layer(batch[0]).sum()}
        job = from_lightning(module)
        assert job.loss(job.model, BATCH).shape == ()
        type(module).training_step = lambda self, batch: None
        with pytest.raises(WorkloadError, match="NoneType without a loss"):
            job.loss(job.model, BATCH)

    def test_a_step_that_needs_a_trainer_is_told_so(self, module):
        type(module).training_step = lambda self, batch: self.trainer.current_epoch
        job = from_lightning(module)
        with pytest.raises(RuntimeError) as raised:
            job.loss(job.model, BATCH)
        assert "Module raised RuntimeError" in cause(raised.value)
        assert "It is called without a Trainer" in cause(raised.value)

    def test_module_and_datamodule_are_set_up_and_then_the_module_makes_its_layers(self, module):
        lightning = pytest.importorskip("lightning")
        called = []

        class Data(lightning.LightningDataModule):
            def prepare_data(self):
                called.append("data prepared")

            def setup(self, stage):
                called.append(f"data {stage}")

            def train_dataloader(self):
                return DataLoader(TensorDataset(*BATCH), batch_size=3)

        def configure_model(self):
            called.append("model")
            self.layer = nn.Linear(3, 1)

        type(module).setup = lambda self, stage: called.append(f"module {stage}")
        type(module).configure_model = configure_model
        del module.layer
        job = from_lightning(module, Data())
        assert called == ["data prepared", "data fit", "module fit", "model"]
        assert (job.loader.batch_size, job.precision) == (3, None)
        assert job.loss(job.model, BATCH).requires_grad
        Data.on_after_batch_transfer = lambda self, batch, dataloader_idx: batch
        with pytest.raises(UsageError, match="Data overrides on_after_batch_transfer"):
            from_lightning(module, Data())

    def test_hooks_around_the_transfer_are_called(self, module):
        type(module).on_before_batch_transfer = lambda self, batch, index: [3 * part for part in batch]
        type(module).on_after_batch_transfer = lambda self, batch, index: [part + 1 for part in batch]
        type(module).training_step = lambda self, batch: self.layer(batch[0]).sum() * 0 + batch[1].sum()
        model, _, compute_loss = unpickled(from_lightning(module))
        assert compute_loss(model, BATCH).item() == pytest.approx((3 * BATCH[1] + 1).sum().item())


ROWS = [{"input_ids": [1 + row % 5] * 4, "labels": row % 2, "note": "unused"} for row in range(12)]


def weighted_loss(outputs, labels, num_items_in_batch=None):
    return nn.functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


class TestTrainer:
    @pytest.fixture
    def made(self, tmp_path):
        """Arguments of TrainingArguments, of Trainer, and its class → the Trainer of a tiny model."""
        transformers = pytest.importorskip("transformers")
        pytest.importorskip("accelerate")

        def make(arguments=None, cls=transformers.Trainer, **others):
            config = transformers.BertConfig(
                vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
            )
            args = transformers.TrainingArguments(
                output_dir=str(tmp_path), use_cpu=True, report_to=[], **(arguments or {})
            )
            model = transformers.BertForSequenceClassification(config)
            return cls(model=model, args=args, train_dataset=ROWS, **others)

        return make

    def test_the_loader_has_the_arguments_settings(self, made):
        arguments = {
            "per_device_train_batch_size": 5,
            "dataloader_num_workers": 1,
            "dataloader_pin_memory": False,
            "dataloader_prefetch_factor": 3,
            "dataloader_persistent_workers": True,
            "dataloader_drop_last": True,
            "gradient_accumulation_steps": 4,
            "bf16": True,
        }
        job = from_trainer(made(arguments))
        loader = job.loader
        assert type(loader) is DataLoader
        assert (loader.batch_size, loader.num_workers, loader.pin_memory) == (5, 1, False)
        assert (loader.prefetch_factor, loader.persistent_workers, loader.drop_last) == (3, True, True)
        assert isinstance(loader.sampler, torch.utils.data.RandomSampler)
        assert (job.accumulate, job.precision, job.loss) == (4, "bf16", None)
        assert sorted(next(iter(loader))) == ["input_ids", "labels"]  # columns that are not used are removed

    def test_the_optimizer_is_the_trainers_and_one_that_was_passed_is_made_again(self, made):
        trainer = made({"learning_rate": 0.125, "weight_decay": 0.5})
        model, make_optimizer, _ = unpickled(from_trainer(trainer))
        optimizer = make_optimizer(model.parameters())
        assert_optimizer_belongs_to(optimizer, model)
        assert isinstance(optimizer, torch.optim.AdamW)
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]
        assert {group["lr"] for group in optimizer.param_groups} == {0.125}
        assert make_optimizer([]) is not optimizer
        assert trainer.optimizer is None
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.125)
        copied, make_optimizer, _ = unpickled(from_trainer(trainer))
        optimizer = make_optimizer([])
        assert_optimizer_belongs_to(optimizer, copied)
        assert (type(optimizer), optimizer.param_groups[0]["lr"]) == (torch.optim.SGD, 0.125)

    @pytest.mark.parametrize("kind", ["function", "subclass", "smoothing"])
    def test_a_loss_of_ones_own_is_the_trainers(self, made, kind):
        transformers = pytest.importorskip("transformers")

        class Doubled(transformers.Trainer):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                return 2 * super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)

        trainer = {
            "function": lambda: made(compute_loss_func=weighted_loss),
            "subclass": lambda: made(cls=Doubled),
            "smoothing": lambda: made({"label_smoothing_factor": 0.1}),
        }[kind]()
        job = from_trainer(trainer)
        model, make_optimizer, compute_loss = unpickled(job)
        model.eval()
        trainer.model.eval()
        batch = next(iter(job.loader))
        keys = sorted(batch)
        loss = compute_loss(model, batch)
        assert sorted(batch) == keys
        given = torch.tensor(len(batch["labels"]))
        assert torch.allclose(loss, trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=given))
        loss.backward()
        make_optimizer([]).step()

    def test_activations_are_checkpointed_as_the_arguments_say_and_a_dataset_is_needed(self, made):
        fields = pytest.importorskip("transformers").TrainingArguments.__dataclass_fields__
        name = "activation_checkpointing" if "activation_checkpointing" in fields else "gradient_checkpointing"
        model, make_optimizer, _ = unpickled(from_trainer(made({name: True})))
        assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
        assert_optimizer_belongs_to(make_optimizer([]), model)
        trainer = made()
        trainer.train_dataset = None
        with pytest.raises(UsageError, match="no train_dataset"):
            from_trainer(trainer)
