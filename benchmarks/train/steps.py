"""Workers that run training steps in bursts (step_clock.h): how they are started and asked."""

import json
import pathlib
import statistics

# What `paceline run` sets for its workers.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_MAX_": "0"}
BATCH = {"cnn": 64, "mlp": 64, "resnet18": 32}  # of one worker


def arguments(workers, model):
    return ["--model", model, "--batch-size", BATCH[model], "--channel", workers.channel]


def burst(workers, steps):
    """For each worker the seconds of each step."""
    return [json.loads(answer) for answer in workers.ask(f"burst {steps}")]


def warm_up(workers, steps):
    """Seconds of a step, once warm."""
    return max(statistics.median(step_s[steps // 2 :]) for step_s in burst(workers, steps))


def rate(workers, steps, batch):
    """Samples per second in one burst."""
    return workers.count * batch * steps / max(sum(step_s) for step_s in burst(workers, steps))


def memory_mib(workers):
    """What each worker holds, its share of what it shares with others included (Pss)."""
    of_each = []
    for pid in workers.pids:
        rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        of_each.append(next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024)
    return statistics.mean(of_each)
