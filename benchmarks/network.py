"""Two hosts with a link of their own between them, out of network namespaces. Needs root and iproute2."""

import os
import pathlib
import subprocess


class Network:
    """With a `rate`, as tc has it, both directions are limited to that (tbf)."""

    made = 0

    def __init__(self, rate=None):
        Network.made += 1
        self.hosts = [f"paceline-{os.getpid()}-{Network.made}-{host}" for host in range(2)]
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

    def sent_bytes(self):
        """By both hosts so far, on the link."""
        count = ["cat", "/sys/class/net/eth/statistics/tx_bytes"]
        return sum(int(subprocess.check_output([*self.on(host), *count])) for host in range(2))

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
