"""Two hosts with a link of their own between them, out of network namespaces, and what benchmarks/peers/run can time
over that link. Needs root and iproute2."""

import os
import pathlib
import subprocess

import driver
import variants
from driver import PYTHON

HERE = pathlib.Path(__file__).resolve().parent
PORT = 4711  # nobody else is in these namespaces


class Network:
    """With a `rate`, as tc has it, both directions are limited to that (tbf)."""

    def __init__(self, rate):
        self.hosts = [f"paceline-{os.getpid()}-{host}" for host in range(2)]
        self.rate = rate

    def __enter__(self):
        try:
            for host in self.hosts:
                ip("netns", "add", host)
                ip("-n", host, "link", "set", "lo", "up")
            first, second = self.hosts
            ip("-n", first, "link", "add", "eth", "type", "veth", "peer", "name", "eth", "netns", second)
            for number, host in enumerate(self.hosts):
                ip("-n", host, "address", "add", f"{address(number)}/24", "dev", "eth")
                ip("-n", host, "link", "set", "eth", "up")
                if self.rate:
                    shape = ["tbf", "rate", self.rate, "burst", "128kb", "latency", "50ms"]
                    call(["tc", "-n", host, "qdisc", "add", "dev", "eth", "root", *shape])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for host in self.hosts:
            subprocess.run(["ip", "netns", "delete", host], stderr=subprocess.DEVNULL, check=False)

    def on(self, host):
        """What a command is to be put behind to run on that host."""
        return ["ip", "netns", "exec", self.hosts[host]]

    def about(self):
        control = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
        return f"two namespaces, {self.rate or 'not limited'}, congestion control {control}"


def address(host):
    return f"10.77.0.{host + 1}"


def ip(*words):
    call(["ip", *words])


def call(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed (it needs root): {done.stderr.strip()}")


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
