"""What benchmarks/peers/run can time over the link between two hosts."""

import os
import pathlib

import driver
import variants
from driver import PYTHON
from network import address

HERE = pathlib.Path(__file__).resolve().parent
PORT = 4711  # nobody else is in these namespaces


class Paceline(variants.Paceline):
    def __init__(self, build, network):
        super().__init__(build)
        self.network = network

    def start(self, workers, arguments):
        secret = pathlib.Path(workers.channel + ".secret")
        secret.touch(mode=0o600)
        secret.write_text(os.urandom(32).hex())
        for host in range(2):
            nodes = ["--nnodes", 2, "--node-rank", host, "--rendezvous", f"{address(0)}:{PORT}", "--secret-file", secret]
            ranks = workers.count // 2
            workers.start([*self.network.on(host), self.launcher, "run", *nodes, "-n", ranks, "--", self.program, *arguments])


class Gloo(variants.Gloo):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def start(self, workers, arguments):
        for rank, job in enumerate(driver.torch_jobs(workers.count)):
            job.update(MASTER_ADDR=address(0), MASTER_PORT=str(PORT + 1), GLOO_SOCKET_IFNAME="eth")
            host = self.network.on(rank * 2 // workers.count)
            workers.start([*host, PYTHON, HERE / "gloo_all_reduce.py", *arguments], **job)


class Sockets:
    """No all-reduce: what the link takes. As many bytes both ways at once over one connection."""

    title = "plain sockets"
    processes = 2

    def __init__(self, network):
        self.network = network

    def version(self):
        return "one TCP connection, both directions at once"

    def start(self, workers, arguments):
        for host in range(2):
            meet = ["--host", address(0), "--port", PORT + 2, "--place", host]
            workers.start([*self.network.on(host), PYTHON, HERE / "sockets_exchange.py", *arguments, *meet])


def find(names, build, network):
    """As variants.find()."""
    makers = {"sockets": lambda: Sockets(network), "gloo": lambda: Gloo(network)}
    found, missing = {}, {}
    for name in names:
        try:
            if name not in makers:
                raise variants.Missing("is not timed over a network")
            found[name] = makers[name]()
        except variants.Missing as why:
            missing[name] = str(why)
    return {"paceline": Paceline(build, network), **found}, missing
