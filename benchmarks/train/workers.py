"""The processes that benchmarks/train/run times: started once, then told when to run how many steps.

Each worker connects to its variant's Unix socket once it is built up, says "ready", and blocks there. It is told
"burst N", which it answers with the seconds of each of the N turns, and at last "end".
"""

import json
import os
import select
import socket
import subprocess
import time

READY_S = 300  # torch is slow to load on a busy machine
REPORT_S = 5  # after a failure: for others to notice, and for `paceline run` to say who was first
LOG_LINES = 40


# What `paceline run` sets for its workers, for all variants: one compute thread, and freed memory is kept.
STOCK = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
ALIKE = {**STOCK, "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_MAX_": "0"}


class WorkerFailed(Exception):
    """Says what the workers printed, too."""


class Workers:
    """Those of one variant. Any method but stop() may raise WorkerFailed; then and in the end, call stop()."""

    def __init__(self, name, count, folder):
        self.name, self.count, self.folder = name, count, folder
        self.channel = str(folder / name)
        self.processes, self.connections = [], []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.channel)
        self.listener.listen(count)

    def start(self, command, alike=ALIKE, **variables):
        """Starts one process, which may be all workers' launcher."""
        with open(self.log(len(self.processes)), "wb") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                env={**os.environ, **alike, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C then reaches only this program, which stops the others
            )
        self.processes.append(process)

    def wait_until_ready(self):
        deadline = time.monotonic() + READY_S
        while len(self.connections) < self.count:
            if select.select([self.listener], [], [], 0.1)[0]:
                self.connections.append(self.listener.accept()[0])
            elif any(process.poll() is not None for process in self.processes):
                self.fail("a worker ended before it was ready")
            elif time.monotonic() > deadline:
                self.fail(f"not ready after {READY_S} s")
        self.answers()

    def burst(self, steps):
        """For each worker the seconds of each step."""
        self.tell(f"burst {steps}")
        return [json.loads(answer) for answer in self.answers()]

    def end(self):
        self.tell("end")
        for process in self.processes:
            if process.wait() != 0:
                self.fail("a worker failed at the end")

    def stop(self):
        for process in self.processes:
            process.terminate()  # does nothing to those that have ended
        for process in self.processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for one in [self.listener, *self.connections]:
            one.close()

    def tell(self, message):
        try:
            for connection in self.connections:
                connection.send(message.encode())
        except ConnectionError:
            self.fail("a worker has ended")

    def answers(self):
        """One message from each, as they come; any of them may be the one that fails."""
        found = {}
        while len(found) < self.count:
            for connection in select.select([one for one in self.connections if one not in found], [], [])[0]:
                try:
                    found[connection] = connection.recv(1 << 20)
                except ConnectionError:
                    found[connection] = b""
                if not found[connection]:
                    self.fail("a worker has ended")
        return [found[connection] for connection in self.connections]

    def fail(self, why):
        deadline = time.monotonic() + REPORT_S
        while any(process.poll() is None for process in self.processes) and time.monotonic() < deadline:
            time.sleep(0.05)
        report = [f"{self.name}: {why}"]
        for number, process in enumerate(self.processes):
            state = "still ran" if process.returncode is None else f"exit status {process.returncode}"
            printed = self.log(number).read_text(errors="replace").splitlines()[-LOG_LINES:]
            report += [f"--- process {number + 1} of {len(self.processes)}, {state}, printed:", *printed]
        raise WorkerFailed("\n".join(report))

    def log(self, number):
        return self.folder / f"{self.name}.{number}.log"
