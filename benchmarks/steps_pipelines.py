"""Twelve ways to load samples, as users write them, with timers around their steps: what `steps.py` runs.

It compiles this file twice: as it is, and without timers (``with step(...)`` gives way to its own lines). Libraries are
imported where a pipeline is made: those that lack one are left out.
"""

import json  # noqa: F401 — for what is planted
import pickle
import random
import re
import time
import zlib
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset
from torchvision import datasets, transforms, tv_tensors
from torchvision.transforms import v2

SECONDS, TIMES = {}, {}
"""Step → seconds in it, without those of steps in it, and how often it was taken. A timer takes 0.5 µs itself."""
_inner_s = [0.0]
TEXT = "the quick brown fox jumps over a lazy dog while many other animals look on"
WORDS = TEXT.split()


class step:
    """``label``: in a library, the class or function that it is. ``others``: names of functions whose lines belong to
    it, or of classes that do its work."""

    def __init__(self, label, *others):
        self.label = label

    def __enter__(self):
        _inner_s.append(0.0)
        self.begun = time.perf_counter()

    def __exit__(self, *_):
        seconds = time.perf_counter() - self.begun
        SECONDS[self.label] = SECONDS.get(self.label, 0.0) + seconds - _inner_s.pop()
        TIMES[self.label] = TIMES.get(self.label, 0) + 1
        _inner_s[-1] += seconds


def jpegs(folder, num=64, width=500, height=400):
    """Files of two classes."""
    chance, paths = np.random.default_rng(0), [folder / "jpegs" / "ab"[n % 2] / f"{n}.jpg" for n in range(num)]
    for path in paths:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            coarse = Image.fromarray(chance.integers(0, 255, (16, 20, 3), dtype=np.uint8)).resize((width, height))
            noise = chance.integers(-12, 12, (height, width, 3))
            Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)).save(path, quality=85)
    return paths


def called(compose):
    """Each transform of a Compose with the method that does its work."""
    return [(type(each), "forward" if isinstance(each, nn.Module) else "__call__") for each in compose.transforms]


# boxes: torchvision's v2 transforms of images and boxes


class Boxes(Dataset):
    def __init__(self, folder):
        chance, self.paths = random.Random(0), jpegs(folder)
        self.corners = [[[chance.randrange(200), chance.randrange(150), 350, 300]] * 5 for _ in self.paths]
        self.transforms = v2.Compose(
            [
                v2.ToImage(),
                v2.RandomPhotometricDistort(p=0.8),
                v2.RandomZoomOut(side_range=(1.0, 2.0)),
                v2.RandomIoUCrop(),
                v2.RandomHorizontalFlip(),
                v2.Resize((320, 320)),
                v2.SanitizeBoundingBoxes(),
                v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
            ]
        )

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with step("decode"):
            image = Image.open(self.paths[index]).convert("RGB")
        with step("boxes"):
            found = tv_tensors.BoundingBoxes(self.corners[index], format="XYXY", canvas_size=image.size[::-1])
        return self.transforms(image, {"boxes": found, "labels": torch.arange(len(found))})


def detection_batch(batch):
    with step("stack"):
        images = torch.stack([image for image, _ in batch])
    return images, [target for _, target in batch]


def boxes(folder):
    dataset = Boxes(folder)
    return dataset, detection_batch, called(dataset.transforms)


# audio: soundfile and torchaudio


class Speech(Dataset):
    def __init__(self, folder):
        global soundfile
        import soundfile
        import torchaudio

        self.paths, chance = [folder / f"{n}.flac" for n in range(32)], np.random.default_rng(0)
        for path in self.paths:
            if not path.exists():
                soundfile.write(path, chance.standard_normal(44_100 * 3) * 0.1, 44_100)
        self.resample = torchaudio.transforms.Resample(44_100, 16_000)
        self.mel = torchaudio.transforms.MelSpectrogram(16_000, n_fft=1024, hop_length=160, n_mels=80)
        self.decibels = torchaudio.transforms.AmplitudeToDB()

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with step("read"):
            wave, _ = soundfile.read(self.paths[index], dtype="float32")
        with step("resample"):
            wave = self.resample(torch.from_numpy(wave))
        with step("mel", "Spectrogram", "MelScale"):
            mel = self.mel(wave)
        with step("decibels"):
            mel = self.decibels(mel)
        return mel[:, : random.randint(200, 300)]


def padded(batch):
    with step("pad"):
        return nn.utils.rnn.pad_sequence([each.T for each in batch], batch_first=True)


def audio(folder):
    return Speech(folder), padded, []


# video: PyAV


class Clips(Dataset):
    def __init__(self, folder):
        global av
        import av

        self.paths, chance = [folder / f"{n}.mp4" for n in range(4)], np.random.default_rng(0)
        for path in self.paths:
            if not path.exists():
                with av.open(str(path), "w") as written:
                    stream = written.add_stream("mpeg4", rate=24)
                    stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
                    still = chance.integers(0, 255, (240, 320, 3), dtype=np.uint8)
                    for n in range(48):
                        frame = av.VideoFrame.from_ndarray(np.roll(still, 4 * n, axis=1), format="rgb24")
                        written.mux(stream.encode(frame))
                    written.mux(stream.encode())

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with step("open"):
            container = av.open(str(self.paths[index]))
        with step("decode"):
            frames = list(islice(container.decode(video=0), 24))
        with step("to numpy"):
            clip = np.stack([frame.to_ndarray(format="rgb24") for frame in frames[::2]])
        with step("close"):
            container.close()
        with step("to floats"):
            clip = torch.from_numpy(clip).permute(0, 3, 1, 2) / 255
        with step("resize"):
            return nn.functional.interpolate(clip, size=(112, 112), mode="bilinear", antialias=True)


def video(folder):
    return Clips(folder), None, []


# hdf5: windows of compressed series


class Series(Dataset):
    def __init__(self, folder):
        import h5py

        self.path, self.file, self.open_file = folder / "series.h5", None, h5py.File
        if not self.path.exists():
            with h5py.File(self.path, "w") as file:
                series = np.random.default_rng(0).standard_normal((64, 8, 4096)).astype(np.float32)
                file.create_dataset("series", data=series, chunks=(1, 8, 1024), compression="gzip")

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if self.file is None:
            self.file = self.open_file(self.path)
        with step("read"):
            series = self.file["series"][index]
        with step("smoothed", "smoothed"):
            series = smoothed(series)
        with step("spectrum"):
            spectrum = np.log1p(np.abs(np.fft.rfft(series)))
        with step("rank"):
            ranks = np.argsort(series, axis=-1).astype(np.float32)
        return torch.from_numpy(spectrum), torch.from_numpy(ranks)


def smoothed(series):
    window = np.hanning(25)
    return np.stack([np.convolve(each, window, mode="same") for each in series])


def hdf5(folder):
    return Series(folder), None, []


# database: encoded images in LMDB


class Database(Dataset):
    def __init__(self, folder):
        global lmdb, cv2, ndimage
        import cv2
        import lmdb
        from scipy import ndimage

        self.path, self.environment = str(folder / "lmdb"), None
        if not Path(self.path).exists():
            with lmdb.open(self.path, map_size=1 << 26) as written, written.begin(write=True) as writing:
                for n, path in enumerate(jpegs(folder)):
                    writing.put(str(n).encode(), pickle.dumps({"jpeg": path.read_bytes(), "label": n}))

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if self.environment is None:
            self.environment = lmdb.open(self.path, readonly=True, lock=False)
        with step("get"):
            value = self.environment.begin().get(str(index).encode())
        with step("unpickle"):
            sample = pickle.loads(value)
        with step("decode"):
            image = cv2.imdecode(np.frombuffer(sample["jpeg"], np.uint8), cv2.IMREAD_COLOR)
        with step("zoom"):
            image = cv2.resize(image, (256, 256), interpolation=cv2.INTER_AREA)
        with step("blur"):
            image = ndimage.gaussian_filter(image, (1.0, 1.0, 0.0))
        with step("scale"):
            image = (image.transpose(2, 0, 1).astype(np.float32) - 127.5) / 60.0
        return torch.from_numpy(image), sample["label"]


def database(folder):
    return Database(folder), None, []


# rows: an iterable dataset over Parquet


class Rows(IterableDataset):
    def __init__(self, folder):
        global parquet
        import pyarrow
        from pyarrow import parquet

        self.path, chance = folder / "rows.parquet", random.Random(0)
        if not self.path.exists():
            texts = [" ".join(chance.choices(WORDS, k=250)) for _ in range(4096)]
            numbers = np.random.default_rng(0).standard_normal((4096, 300)).tolist()
            parquet.write_table(pyarrow.table({"text": texts, "numbers": numbers}), self.path, row_group_size=1024)

    def __iter__(self):
        while True:
            batches = parquet.ParquetFile(self.path).iter_batches(batch_size=256)
            for _ in range(16):
                with step("read"):
                    batch = next(batches)
                with step("to Python"):
                    rows = batch.to_pylist()
                for row in rows:
                    with step("hash"):
                        hashes = [zlib.crc32(word.encode()) % 5000 for word in row["text"].split()]
                    with step("features"):
                        features = np.array([*row["numbers"], len(row["text"])], dtype=np.float32)
                    with step("tensor"):
                        sample = torch.tensor(hashes), torch.from_numpy(features)
                    yield sample


def rows(folder):
    return Rows(folder), None, []


# segmentation: albumentations


class Masks(Dataset):
    def __init__(self, folder):
        global cv2
        import albumentations as A
        import cv2
        from albumentations.pytorch import ToTensorV2

        self.paths = jpegs(folder)
        self.augment = A.Compose(
            [
                A.RandomResizedCrop((256, 256)),
                A.HorizontalFlip(),
                A.ElasticTransform(p=0.7),
                A.RandomBrightnessContrast(p=0.5),
                A.Normalize(),
                ToTensorV2(),
            ]
        )

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with step("read"):
            image = cv2.imread(str(self.paths[index]))
        with step("colours"):
            image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        with step("threshold"):
            mask = (image.mean(axis=-1) > 127).astype(np.uint8)
        both = self.augment(image=image, mask=mask)
        return both["image"], both["mask"]


def segmentation(folder):
    dataset = Masks(folder)
    return dataset, None, [(type(each), "__call__") for each in dataset.augment.transforms]


# volumes: MONAI


def volumes(folder):
    import nibabel
    from monai import data
    from monai import transforms as m

    names, chance = (
        [(folder / f"{n}.nii.gz", folder / f"{n}-labels.nii.gz") for n in range(6)],
        np.random.default_rng(0),
    )
    for image, label in names:
        if not image.exists():
            volume = chance.standard_normal((64, 64, 40)).astype(np.float32)
            nibabel.save(nibabel.Nifti1Image(volume, np.diag([1.5, 1.5, 2.0, 1.0])), image)
            nibabel.save(nibabel.Nifti1Image((volume > 1).astype(np.uint8), np.diag([1.5, 1.5, 2.0, 1.0])), label)
    both = ["image", "label"]
    compose = m.Compose(
        [
            m.LoadImaged(both),
            m.EnsureChannelFirstd(both),
            m.Orientationd(both, axcodes="RAS"),
            m.Spacingd(both, pixdim=(1.2, 1.2, 1.2), mode=("bilinear", "nearest")),
            m.ScaleIntensityd("image"),
            m.RandCropByPosNegLabeld(both, label_key="label", spatial_size=(48, 48, 32), num_samples=2),
            m.RandGaussianSmoothd("image", prob=0.5),
            m.RandFlipd(both, prob=0.5, spatial_axis=0),
        ]
    )
    dataset = data.Dataset([dict(zip(both, pair, strict=True)) for pair in names], compose)
    return dataset, data.list_data_collate, [(type(each), "__call__") for each in compose.transforms]


# augment: timm


def augment(folder):
    from timm import data

    jpegs(folder)
    compose = data.create_transform(224, is_training=True, auto_augment="rand-m9-mstd0.5", re_prob=0.5, re_mode="pixel")
    dataset = data.ImageDataset(str(folder / "jpegs"), transform=compose)
    return dataset, None, [*called(compose), (type(dataset), "__getitem__")]


# text: Hugging Face datasets, with a transform of one's own


def encode(rows):
    with step("split"):
        words = [re.findall(r"\w+|[^\w\s]", text.lower()) for text in rows["text"]]
    with step("pieces", "pieces"):
        numbers = [pieces(each) for each in words]
    with step("tensors"):
        return {"numbers": [torch.tensor(each) for each in numbers], "label": rows["label"]}


def pieces(words):
    return [zlib.crc32(word[at : at + 3].encode()) % 8000 for word in words for at in range(0, len(word), 3)]


def text_batch(batch):
    with step("pad"):
        numbers = nn.utils.rnn.pad_sequence([each["numbers"] for each in batch], batch_first=True)
    with step("mask"):
        return numbers, numbers.ne(0), torch.tensor([each["label"] for each in batch])


def text(folder):
    from datasets import Dataset as Texts

    chance = random.Random(0)
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(200, 400))) for _ in range(500)]
    dataset = Texts.from_dict({"text": texts, "label": list(range(500))}).with_transform(encode)
    return dataset, text_batch, [(Texts, "__getitems__")]


# points: numpy and scipy


class Points(Dataset):
    def __init__(self, folder):
        global cKDTree
        from scipy.spatial import cKDTree

        self.paths, chance = [folder / f"{n}.npz" for n in range(32)], np.random.default_rng(0)
        for path in self.paths:
            if not path.exists():
                np.savez_compressed(path, points=chance.standard_normal((4000, 3)).astype(np.float32))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with step("load"):
            points = np.load(self.paths[index])["points"]
        with step("rotated", "rotated"):
            points = rotated(points)
        with step("farthest", "farthest"):
            points = farthest(points, 128)
        with step("neighbours"):
            _, near = cKDTree(points).query(points, k=16)
        with step("normals"):
            normals = np.linalg.svd(points[near] - points[near].mean(axis=1, keepdims=True))[2][:, -1]
        return np.concatenate([points, normals], axis=1)


def rotated(points):
    angle = random.uniform(0, 2 * np.pi)
    matrix = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    return points @ matrix + np.random.normal(0, 0.01, points.shape)


def farthest(points, num):
    chosen, distances = [0], np.full(len(points), np.inf)
    for _ in range(num - 1):
        distances = np.minimum(distances, ((points - points[chosen[-1]]) ** 2).sum(axis=1))
        chosen.append(int(distances.argmax()))
    return points[chosen]


def points(folder):
    return Points(folder), None, []


# mixture: a dataset of datasets


class Patches(Dataset):
    def __init__(self, folder):
        self.path = folder / "large.npy"
        if not self.path.exists():
            np.save(self.path, np.random.default_rng(0).integers(0, 255, (2048, 2048), dtype=np.uint8))
        self.large = np.load(self.path, mmap_mode="r")

    def __len__(self):
        return 64

    def __getitem__(self, index):
        with step("cut"):
            patch = np.array(self.large[index * 8 : index * 8 + 128, 256:384])
        with step("equalise"):
            _, inverse, counts = np.unique(patch, return_inverse=True, return_counts=True)
        with step("grey"):
            return torch.from_numpy(counts.cumsum()[inverse] / patch.size).float().view(1, 128, 128).repeat(3, 1, 1), 2


class Mixture(Dataset):
    def __init__(self, parts, strength):
        self.parts, self.strength = parts, strength

    def __len__(self):
        return sum(map(len, self.parts))

    def __getitem__(self, index):
        part = self.parts[index % len(self.parts)]
        image, label = part[index % len(part)]
        with step("noise"):
            image = image + self.strength * torch.randn_like(image)
        return image, label


def mixture(folder):
    jpegs(folder)
    compose = transforms.Compose(
        [
            transforms.RandomResizedCrop(128),
            transforms.RandomRotation(20),
            transforms.ToTensor(),
        ]
    )
    files = datasets.ImageFolder(str(folder / "jpegs"), compose)
    dataset = Mixture([Subset(files, range(0, 64, 2)), ConcatDataset([Patches(folder), Patches(folder)])], 0.1)
    return dataset, None, [*called(compose), (files, "loader")]


PIPELINES = {
    each.__name__: each
    for each in (boxes, audio, video, hdf5, database, rows, segmentation, volumes, augment, text, points, mixture)
}

BATCHES = {"boxes": 4, "rows": 128, "text": 64, "volumes": 2}
"""Samples of a batch, where 8 would take too long, or no time."""
PARTS = {"AugmentOp": "RandAugment", "InMemoryTable": "Dataset"}
"""Objects of libraries that do the work of others, which have the timers."""


# What `steps.py` plants


def slowly(*given, **_):
    """A transform."""
    return given if len(given) > 1 else given[0]


def spend(num):
    return [zlib.crc32(str(number).encode()) for number in range(num)]
