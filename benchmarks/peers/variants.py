"""What benchmarks/peers/run can time: how each is found on this machine, and how its workers are started."""

import os
import pathlib
import shutil
import subprocess

import driver
from driver import PYTHON

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = [HERE / "mpi_all_reduce.cpp", HERE / "bursts.cpp", HERE.parent / "channel.cpp"]
HEADERS = [HERE / "bursts.h", HERE.parent / "channel.h"]


class Missing(Exception):
    """Says which package brings it."""


class Paceline:
    title = "paceline"

    def __init__(self, build):
        self.launcher, self.program = build / "bin/paceline", build / "bin/paceline_all_reduce"
        for program in (self.launcher, self.program):
            if not program.is_file():
                raise Missing(f"{program} is not there: build it first (cmake --build {build}), or name --build")

    def version(self):
        return first_line([self.launcher, "--version"])

    def start(self, workers, arguments):
        workers.start([self.launcher, "run", "-n", workers.count, "--", self.program, *arguments])


class Mpi:
    """One of the MPIs that Debian installs side by side, under names of their own."""

    def __init__(self, build, title, suffix, packages):
        self.title, self.suffix = title, suffix
        self.compiler, self.launcher = shutil.which(f"mpicxx.{suffix}"), shutil.which(f"mpirun.{suffix}")
        if not self.compiler or not self.launcher:
            raise Missing(f"not installed: apt-get install {packages}")
        self.program = build / "bin" / f"{suffix}_all_reduce"
        self.compile(packages)

    def compile(self, packages):
        """Unless it is there and newer than its sources."""
        changed = max(source.stat().st_mtime for source in [*SOURCES, *HEADERS])
        if self.program.exists() and self.program.stat().st_mtime > changed:
            return
        driver.progress(f"building {self.program.name}")
        # Without MPI's old C++ interface: it needs a library more, and does not compile without warnings.
        flags = ["-std=c++20", "-O2", "-DNDEBUG", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX", f"-I{HERE.parent}"]
        done = subprocess.run(
            [self.compiler, *flags, *SOURCES, "-o", self.program], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return
        if "mpi.h: No such file" in done.stderr:
            raise Missing(f"not installed: apt-get install {packages}")
        raise SystemExit(f"{self.compiler} failed:\n{done.stderr}")

    def launch(self, count):
        return [self.launcher, "-n", count]

    def start(self, workers, arguments):
        workers.start([*self.launch(workers.count), self.program, *arguments])


class OpenMpi(Mpi):
    def __init__(self, build):
        super().__init__(build, "Open MPI", "openmpi", "openmpi-bin libopenmpi-dev")

    def version(self):
        return "Open MPI " + first_line([self.launcher, "--version"]).split()[-1]

    def launch(self, count):
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [*super().launch(count), "--oversubscribe", *as_root]


class Mpich(Mpi):
    def __init__(self, build):
        super().__init__(build, "MPICH", "mpich", "mpich libmpich-dev")

    def version(self):
        lines = printed([self.launcher, "--version"]).splitlines()
        return next("MPICH " + line.split(":")[1].strip() for line in lines if line.strip().startswith("Version:"))


class Gloo:
    title = "Gloo"

    def __init__(self):
        probe = [PYTHON, "-c", "import torch.distributed as d, torch; d.is_gloo_available(); print(torch.__version__)"]
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Missing("not installed: apt-get install python3-torch")
        self.torch = done.stdout.strip()

    def version(self):
        return f"torch.distributed {self.torch}"

    def start(self, workers, arguments):
        for job in driver.torch_jobs(workers.count):
            workers.start([PYTHON, HERE / "gloo_all_reduce.py", *arguments], **job)


# In the table's order.
PEERS = {
    "openmpi": OpenMpi,
    "mpich": Mpich,
    "gloo": lambda build: Gloo(),
}


def find(names, build):
    """Paceline and those of PEERS that are there, by name, and why the others are not. Raises Missing where Paceline
    is."""
    found, missing = {"paceline": Paceline(build)}, {}
    for name in names:
        try:
            if name not in PEERS:
                raise Missing("is timed over a network only, see --network")
            found[name] = PEERS[name](build)
        except Missing as why:
            missing[name] = str(why)
    return found, missing


def first_line(command):
    return printed(command).splitlines()[0]


def printed(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
