"""What the benchmarks' `run` programs share: the machine's description, statistics, and how they end."""

import os
import pathlib
import platform
import signal
import socket
import statistics
import sys

from workers import WorkerFailed

ROOT = pathlib.Path(__file__).resolve().parents[1]
PYTHON = "/usr/bin/python3"  # the one that Debian's python3-torch belongs to


def run(main):
    """Calls main() so that Ctrl-C, SIGTERM and SIGHUP end the program through its clean-up."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, _: sys.exit(128 + got))
    try:
        main()
    except WorkerFailed as failure:
        sys.exit(str(failure))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def machine():
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    model = next((line.split(":", 1)[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")), "?")
    return {
        "machine": f"{model}, {len(os.sched_getaffinity(0))} cores",
        "system": platform.platform(),
    }


def torch_jobs(count):
    """For each rank the environment with which torch.distributed finds the others over loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    job = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    return [{**job, "RANK": str(rank)} for rank in range(count)]


def quartiles(values):
    few = len(values) < 2
    cuts = values * 3 if few else statistics.quantiles(values, n=4, method="inclusive")
    return dict(zip(["q1", "median", "q3"], cuts))


def markdown_table(rows):
    """The first row is the header."""
    header, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *body])


def progress(text):
    print(text, file=sys.stderr, flush=True)
