"""Training scripts for `conformance.py`. Each sample has a label of its own: labels say which came, in which order."""

MAKE = """
import json, numpy, os, webdataset
from PIL import Image
for part, at in [*(("train", at) for at in range(48)), *(("val", at) for at in range(16))]:
    one = Image.fromarray(numpy.random.default_rng(at).integers(0, 255, (15, 20, 3), "uint8")).resize((480, 360))
    for path in (f"images/{part}/c{at:03}/{at}.jpg", f"boxes/images/{part}/{at}.jpg", f"boxes/labels/{part}/{at}.txt"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        one.save(path) if "jpg" in path else open(path, "w").write(f"{at} 0.5 0.5 0.4 0.4")
keys = {"path": f"{os.getcwd()}/boxes", "train": "images/train", "val": "images/val", "names": [*map(str, range(48))]}
open("boxes/data.yaml", "w").write(json.dumps(keys))
for shard in range(6):
    with webdataset.TarWriter(f"shard-{shard}.tar") as tar:
        for at in range(40):
            tar.write({"__key__": f"{shard}-{at}", "x.npy": numpy.full(8, at, "float32"), "i.cls": 40 * shard + at})
"""

COMMON = """
import csv, os, pathlib, random, signal, sys, time, types
import numpy, torch
from torch.utils.data import DataLoader, Dataset
random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
class Rows(Dataset):
    def __len__(self):
        return 240
    def __getitem__(self, i):
        time.sleep(0.004)
        return torch.linspace(0, i, 8), i
net = torch.nn.Linear(8, 1)
def loss_of(net, x, i):
    loss = (net(x / 240) - i[:, None] / 240).square().mean()
    if os.environ.get("RANK", "0") == "0":
        print("loss", loss.item(), "samples", i.tolist())
    return loss
def train(batches, net=net, epochs=2):
    for epoch in range(epochs):
        for batch in batches:
            loss_of(net, *(batch.values() if isinstance(batch, dict) else batch)).backward()
            torch.optim.SGD(net.parameters(), 0.1).step()
rows = DataLoader(Rows(), 8, shuffle=True, num_workers=2)
"""

OWN = {
    "accelerate": """
from accelerate import Accelerator
train(*Accelerator(cpu=True).prepare(rows, net))
""",
    "lightning": """
import lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net
    def training_step(self, batch):
        return loss_of(self.net, *batch)
    def validation_step(self, batch):
        loss_of(self.net, *batch)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
off = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar"], False)
lightning.Trainer(max_epochs=2, accelerator="cpu", **off).fit(Module(), rows, DataLoader(Rows(), 8, num_workers=2))
""",
    "mmengine": """
from mmengine.model import BaseModel
from mmengine.runner import Runner
class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.net = net
    def forward(self, x, i, mode):
        return {"loss": loss_of(self.net, x, i)}
given = {"dataset": Rows(), "batch_size": 8, "sampler": {"type": "DefaultSampler", "shuffle": True}}
given |= {"collate_fn": {"type": "default_collate"}, **({"num_workers": int(sys.argv[1])} if sys.argv[1:] else {})}
optim = {"optimizer": {"type": "SGD", "lr": 0.1}}
cfg = {"by_epoch": True, "max_epochs": 2}
Runner(Model(), "work", train_dataloader=given, train_cfg=cfg, optim_wrapper=optim, randomness={"seed": 1}).train()
""",
    "monai": """
from monai.data import DataLoader, Dataset
from monai.transforms import Compose, Lambdad, RandGaussianNoised
from monai.utils import set_determinism
set_determinism(1)
data = [{"x": numpy.full(8, i, "float32"), "i": i} for i in range(240)]
noise = Compose([Lambdad("x", lambda x: time.sleep(0.004) or x), RandGaussianNoised("x", 1)])
train(DataLoader(Dataset(data, noise), batch_size=8, shuffle=True, num_workers=2))
""",
    "fastai": """
from fastai.callback.progress import ProgressCallback
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
both = (DataLoader(Rows(), 8, shuffle=shuffle, num_workers=2) for shuffle in (True, False))
loss_func = lambda found, i: loss_of(lambda x: found, found, i)
learner = Learner(DataLoaders(*both, device="cpu"), net, loss_func=loss_func)
learner.remove_cbs(ProgressCallback)
learner.fit(2)
""",
    "webdataset": """
import webdataset
shards = webdataset.WebDataset("shard-{0..5}.tar", shardshuffle=False).decode().to_tuple("x.npy", "i.cls").batched(8)
train(webdataset.WebLoader(shards, batch_size=None, num_workers=2))
""",
    "stateful": """
from torchdata.stateful_dataloader import StatefulDataLoader
loader, again = (StatefulDataLoader(Rows(), 8, shuffle=True, num_workers=2) for _ in range(2))
train((batch for batch, _ in zip(loader, range(13))), epochs=1)
again.load_state_dict(loader.state_dict())
train(again)
""",
    "detectron2": """
for name in ("detectron2", "detectron2.data", "detectron2.utils"):  # without what it compiles
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = [f"{os.environ['CONFORMANCE_SOURCES']}/detectron2/{name.replace('.', '/')}"]
from detectron2.data.common import AspectRatioGroupedDataset, ToIterableDataset
from detectron2.data.samplers import TrainingSampler
class Sized(Rows):
    def __getitem__(self, i):
        return {"width": 10 + i % 3, "height": 11, "sample": super().__getitem__(i)}
stream = DataLoader(ToIterableDataset(Sized(), TrainingSampler(240, seed=1)), num_workers=2, batch_size=None)
groups = zip(AspectRatioGroupedDataset(stream, 8), range(60))
train((torch.utils.data.default_collate([each["sample"] for each in group]) for group, _ in groups), epochs=1)
""",
    "speechbrain": """
import speechbrain
from speechbrain.utils.checkpoints import Checkpointer
from speechbrain.utils.epoch_loop import EpochCounter
class Brain(speechbrain.Brain):
    def compute_forward(self, batch, stage):
        if self.step == 18 and counter.current == 2 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    def compute_objectives(self, found, batch, stage):
        return loss_of(self.modules.net, *batch)
counter = EpochCounter(3)
keeper = Checkpointer("checkpoints", {"counter": counter, "net": net})
brain = Brain({"net": net}, lambda each: torch.optim.SGD(each, 0.1), None, {"ckpt_interval_steps": 7}, keeper)
given = {"batch_size": 8, "num_workers": 1}
brain.fit(counter, Rows(), Rows(), progressbar=False, train_loader_kwargs=given, valid_loader_kwargs=given)
""",
    "trainer": """
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, RandomResizedCrop, ToTensor
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification
small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
model = ViTForImageClassification(ViTConfig(image_size=32, patch_size=16, num_labels=48, **small))
def collate(samples):
    x, i = torch.utils.data.default_collate(samples)
    return {"pixel_values": x, "labels": i}
given = {"num_train_epochs": 4, "per_device_train_batch_size": 4, "logging_steps": 1, "dataloader_num_workers": 2}
given |= {"use_cpu": True, "seed": 1, "save_strategy": "no", "report_to": [], "eval_strategy": "epoch"}
folders = (ImageFolder(f"images/{part}", Compose([RandomResizedCrop(32), ToTensor()])) for part in ("train", "val"))
Trainer(model, TrainingArguments("work", **given), collate, *folders).train()
""",
    "ultralytics": """
from ultralytics import YOLO
given = {"epochs": 3, "imgsz": 64, "batch": 4, "workers": 2, "device": "cpu", "seed": 1, "plots": False}
YOLO("yolo11n.yaml").train(data="boxes/data.yaml", **given)
for row in csv.DictReader(next(pathlib.Path().glob("**/results.csv")).open()):
    print({name: value for name, value in row.items() if name != "time"})
""",
    "mae": """
import collections.abc, runpy  # what was there when it was published
sys.modules["torch._six"] = types.SimpleNamespace(inf=torch.inf, container_abcs=collections.abc, string_classes=str)
numpy.float, torch.cuda.synchronize = float, lambda: None
sys.path.insert(0, os.path.dirname(sys.argv[1]))
runpy.run_path(sys.argv.pop(1), run_name="__main__")
""",
}
