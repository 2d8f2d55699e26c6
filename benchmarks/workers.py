"""The processes that a benchmark times: started once, then told when to do what.

Each worker connects to its variant's Unix socket once it is built up, says "ready", and blocks there (channel.h). All
workers of a variant are told the same, and each answers. The last message is "end".
"""

import os
import select
import signal
import socket
import struct
import subprocess
import time

READY_S = 300  # torch is slow to load on a busy machine
END_S = 60
REPORT_S = 5  # after a failure: for others to notice, and for `paceline run` to say who was first
LOG_LINES = 40

# What `paceline run` sets for its workers, for all variants.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class WorkerFailed(Exception):
    """Says what the workers printed, too."""


class TooSlow(Exception):
    """No answer within the limit. The workers are still at it: stop() them."""


class Workers:
    """Those of one variant. Any method but stop() may raise WorkerFailed; then and in the end, call stop()."""

    def __init__(self, name, count, folder):
        self.name, self.count, self.folder = name, count, folder
        self.channel = str(folder / name)
        self.processes, self.connections, self.handles, self.pids = [], [], [], []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.channel)
        self.listener.listen(count)

    def start(self, command, **variables):
        """Starts one process, which may be all workers' launcher."""
        with open(self.log(len(self.processes)), "wb") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                env={**os.environ, **ONE_THREAD, **variables},
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
                connection = self.listener.accept()[0]
                self.connections.append(connection)
                pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
                self.handles.append(os.pidfd_open(pid))
                self.pids.append(pid)
            elif any(process.poll() is not None for process in self.processes):
                self.fail("a worker ended before it was ready")
            elif time.monotonic() > deadline:
                self.fail(f"not ready after {READY_S} s")
        self.answers()

    def ask(self, message, limit_s=None):
        """Each worker's answer. Raises TooSlow where the last of them takes longer than limit_s."""
        self.tell(message)
        return self.answers(limit_s)

    def end(self):
        self.tell("end")
        deadline = time.monotonic() + END_S
        for process in self.processes:
            try:
                if process.wait(timeout=max(0, deadline - time.monotonic())) != 0:
                    self.fail("a worker failed at the end")
            except subprocess.TimeoutExpired:
                self.fail(f"a worker did not end within {END_S} s")

    def stop(self):
        for process in self.processes:
            process.terminate()  # does nothing to those that have ended
        for process in self.processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for handle in self.handles:  # a launcher that was killed leaves its workers behind
            try:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            except ProcessLookupError:
                pass
            os.close(handle)
        self.handles = []
        for one in [self.listener, *self.connections]:
            one.close()

    def tell(self, message):
        try:
            for connection in self.connections:
                connection.send(message.encode())
        except ConnectionError:
            self.fail("a worker has ended")

    def answers(self, limit_s=None):
        """One message from each, as they come; any of them may be the one that fails."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        found = {}
        while len(found) < self.count:
            left_s = None if deadline is None else max(0, deadline - time.monotonic())
            answered = select.select([one for one in self.connections if one not in found], [], [], left_s)[0]
            if not answered:
                raise TooSlow(self.name)
            for connection in answered:
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
