"""The same training steps as plain_steps, with PyTorch's DistributedDataParallel over Gloo and its best settings.

Started once for each rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; benchmarks/train/run does so.
"""

import argparse
import json
import socket
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCHES = 64  # different batches in memory, used in turn


class Block(nn.Module):
    def __init__(self, inp, out, stride):
        super().__init__()
        self.body = nn.Sequential(
            conv(inp, out, 3, stride), nn.BatchNorm2d(out), nn.ReLU(), conv(out, out, 3), nn.BatchNorm2d(out)
        )
        same = stride == 1 and inp == out
        self.skip = nn.Identity() if same else nn.Sequential(conv(inp, out, 1, stride), nn.BatchNorm2d(out))

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


def conv(inp, out, kernel, stride=1):
    return nn.Conv2d(inp, out, kernel, stride, kernel // 2, bias=False)


def cnn():
    return nn.Sequential(
        *(conv(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(conv(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)
    )


def resnet18():
    shapes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    return nn.Sequential(
        *(conv(1, 64, 3), nn.BatchNorm2d(64), nn.ReLU()),
        *(Block(*shape) for shape in [*shapes, (512, 512, 1)]),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)),
    )


def turns(channel):
    """The training loop's turns, in the bursts that benchmarks/train/run asks for: what StepClock is to plain_steps."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as run:
        run.connect(channel)
        run.send(b"ready")
        i = 0
        while (message := run.recv(64)) != b"end":
            if not message.startswith(b"burst "):
                raise SystemExit("benchmarks/train/run went away")
            turn_s = []
            last = time.perf_counter()
            for _ in range(int(message.split()[1])):
                yield i % BATCHES
                i += 1
                now = time.perf_counter()
                turn_s.append(now - last)
                last = now
            run.send(json.dumps(turn_s).encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["cnn", "mlp", "resnet18"], required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--channel", required=True)
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    model = {"cnn": cnn, "mlp": mlp, "resnet18": resnet18}[options.model]()
    # Batch norm statistics stay each rank's own, as with paceline.
    model = DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    images = torch.randn(BATCHES, options.batch_size, 1, 28, 28)
    labels = torch.randint(10, (BATCHES, options.batch_size))

    for i in turns(options.channel):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(images[i]), labels[i]).backward()
        optimizer.step()
    dist.barrier()


if __name__ == "__main__":
    main()
