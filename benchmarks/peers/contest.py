"""All variants' processes at one number of ranks, and how bursts of calls are timed in turn."""

import contextlib
import json
import math
import pathlib
import statistics
import tempfile

from driver import progress
from tables import ratios, size_name
from workers import TooSlow, WorkerFailed, Workers

SHORT_S = 20e-6  # a look at the clock takes too large a part of shorter calls
SAMPLE_S = 200e-6  # of short calls back to back
BATCH = 10  # of them, at least, unless that many take longer than
BATCH_S = 10e-3
SAMPLES = (3, 1000)  # in a burst, at least and at most
SLOW_S = 50e-3  # such calls vary little: one to warm up and one to time are a burst


class Contest(contextlib.ExitStack):
    """Leaving it stops all processes."""

    def __init__(self, ranks, variants, max_bytes, limit_s):
        """`variants`: {name: one of variants.py}."""
        super().__init__()
        self.ranks, self.variants, self.limit_s = ranks, variants, limit_s
        self.notes, self.alive = [], {}
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory(prefix="paceline-peers-")))
        try:
            for name, variant in variants.items():
                self.alive[name] = Workers(name, getattr(variant, "processes", ranks), folder)
                self.callback(self.alive[name].stop)
                variant.start(self.alive[name], ["--channel", self.alive[name].channel, "--max-bytes", max_bytes])
            for workers in self.alive.values():
                workers.wait_until_ready()
        except BaseException:
            self.close()
            raise
        progress(f"{ranks} ranks: all are ready")

    def measure(self, size, rounds, burst_s, shuffle):
        """{"bytes", "rounds": [{name: seconds of a call}], "median": {name: seconds}, "ratios": {peer: quartiles}}."""
        bursts = self.plan(size, burst_s)
        found = [self.round(bursts, shuffle) for _ in range(rounds)]
        found = [{name: one[name] for name in bursts} for one in found]
        median = {name: statistics.median(one[name] for one in found) for name in bursts}
        shown = ", ".join(f"{name} {call_s * 1e6:.3g}" for name, call_s in median.items())
        progress(f"{self.ranks} ranks, {size_name(size)}, us: {shown}")
        return {"bytes": size, "rounds": found, "median": median, "ratios": ratios(found)}

    def end(self):
        for workers in self.alive.values():
            workers.end()

    def plan(self, size, burst_s):
        """For each variant the burst (see timed()) that takes about as long as it shall."""
        call_s = {}
        for name, workers in list(self.alive.items()):
            try:
                workers.ask(f"check {size}", self.limit_s)
                call_s[name] = self.timed(name, (size, 0, 1, 1))
                if call_s[name] < SLOW_S:
                    call_s[name] = self.timed(name, (size, 1, 3, 1))
            except TooSlow:
                self.drop(name, size)
        short = min(call_s.values()) < SHORT_S
        bursts = {}
        for name, estimate_s in call_s.items():
            batch = 1
            if short:
                if estimate_s < BATCH_S / BATCH:
                    estimate_s = self.timed(name, (size, 1, 3, 2 * BATCH))
                batch = max(round(SAMPLE_S / estimate_s), min(BATCH, math.ceil(BATCH_S / estimate_s)))
            least = SAMPLES[0] if batch * estimate_s < SLOW_S else 1
            samples = min(max(round(burst_s / (batch * estimate_s)), least), SAMPLES[1])
            # Ranks that woke up on the same core need some ms to be moved apart.
            bursts[name] = (size, max(1, samples // 5), samples, batch)
        return bursts

    def round(self, bursts, shuffle):
        """{name: seconds of a call}. Takes those that are too slow out of `bursts`."""
        order = list(bursts)
        shuffle(order)
        call_s = {}
        for name in order:
            try:
                call_s[name] = self.timed(name, bursts[name])
            except TooSlow:
                self.drop(name, bursts.pop(name)[0])
        return call_s

    def timed(self, name, burst):
        """Seconds of a call: the median over the samples of a burst (bytes, warm-up, samples, calls in a sample), each
        as long as the slowest rank's."""
        answers = self.alive[name].ask("burst " + " ".join(map(str, burst)), self.limit_s)
        return statistics.median(max(ranks) for ranks in zip(*map(json.loads, answers), strict=True))

    def drop(self, name, size):
        self.alive.pop(name).stop()
        title = self.variants[name].title
        self.notes.append(f"{title} was stopped at {size_name(size)}: no answer within {self.limit_s:g} s")
        progress(self.notes[-1])
        if name == "paceline":
            raise WorkerFailed(self.notes[-1])
