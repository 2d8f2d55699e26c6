"""What benchmarks/peers/run times of Gloo: torch.distributed's all_reduce in place. The same loop as in bursts.h.

Started once for each rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; benchmarks/peers/run does so.
"""

import argparse
import json
import socket
import time

import torch
import torch.distributed as dist

PERIOD = 1000  # values small enough for sums that are exact


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channel", required=True)
    parser.add_argument("--max-bytes", type=int, required=True)
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = torch.empty(options.max_bytes // 4)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as run:
        run.connect(options.channel)
        run.send(b"ready")
        while (message := run.recv(128)) != b"end":
            verb, *numbers = message.decode().split() or ["nothing: the benchmark went away"]
            if verb == "check":
                check(data[: int(numbers[0]) // 4])
                run.send(b"right")
            elif verb == "burst":
                size, warmup, samples, batch = map(int, numbers)
                run.send(json.dumps(burst(data[: size // 4], warmup, samples, batch)).encode())
            else:
                raise SystemExit(f"not for an all-reduce: {verb}")
    dist.barrier()


def check(part):
    ranks = range(dist.get_world_size())
    known = torch.arange(PERIOD, dtype=torch.float32).repeat(len(part) // PERIOD + 1)[: len(part)]
    part.copy_(known).add_(dist.get_rank())
    dist.all_reduce(part)
    wrong = torch.nonzero(part != known.mul_(len(ranks)).add_(sum(ranks)))
    if len(wrong) > 0:
        raise SystemExit(f"wrong sum: element {wrong[0].item()} of {len(part)}")
    part.zero_()  # sums of zeros stay what they are, however many follow


def burst(part, warmup, samples, batch):
    call_s = []
    for i in range(warmup + samples):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(batch):
            dist.all_reduce(part)
        taken = time.perf_counter() - begin
        if i >= warmup:
            call_s.append(taken / batch)
    return call_s


if __name__ == "__main__":
    main()
