"""Image classification on JPEGs of an object store: each is fetched over HTTP. It needs torchvision.

Workers while it trains:        loadtune exec -- python examples/object_store.py
Batch size, workers, precision: loadtune run -- python examples/object_store.py

A process on this machine stands for the store; it answers each request after 20 ms. For a store of yours, with /0.jpg,
/1.jpg and so on, set STORE=http://HOST:PORT and IMAGES=NUMBER. An argument sets the number of epochs.
"""

import asyncio
import multiprocessing
import os
import socket
import sys
import time
from http.client import HTTPConnection

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.io import decode_jpeg, encode_jpeg

IMAGES = int(os.environ.get("IMAGES", "6000"))
JPEGS = [encode_jpeg(torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8)).numpy().tobytes() for _ in range(20)]


class Answer(asyncio.Protocol):
    def connection_made(self, transport):
        self.write = transport.write

    def data_received(self, request):
        jpeg = JPEGS[int(request[len("GET /") : request.index(b".jpg")]) % len(JPEGS)]
        response = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(jpeg), jpeg)
        asyncio.get_running_loop().call_later(0.020, self.write, response)


async def serve(listener):
    os.setsid()  # Ctrl-C ends the training, and the end of the training ends this
    await asyncio.get_running_loop().create_server(Answer, sock=listener)
    await asyncio.to_thread(multiprocessing.parent_process().join)


def start_store():
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(serve(listener)), daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


class StoredImages(Dataset):
    def __init__(self, store):
        self.address, self.http = store.removeprefix("http://"), None

    def __len__(self):
        return IMAGES

    def __getitem__(self, index):
        self.http = self.http or HTTPConnection(self.address)  # one for each worker
        self.http.request("GET", f"/{index}.jpg")
        return decode_jpeg(torch.frombuffer(bytearray(self.http.getresponse().read()), dtype=torch.uint8)), index % 10


if __name__ == "__main__":
    loader = DataLoader(StoredImages(os.environ.get("STORE") or start_store()), 64, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Conv2d(3, 16, 4, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(int(sys.argv[1]) if sys.argv[1:] else 4):
        began = time.perf_counter()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {(sec := time.perf_counter() - began):.1f} s, {IMAGES / sec:,.0f} images/s", flush=True)
