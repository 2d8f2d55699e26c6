"""Draws benchmarks/peers/run's results with gnuplot."""

import math
import pathlib
import shutil
import subprocess

import driver
from tables import size_name

WIDTH, HEIGHT = 480, 400  # of the panel of one number of ranks
TICKS = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 128 << 20]
COLOURS = ["#d62728", "#1f77b4", "#2ca02c", "#7f7f7f", "#9467bd"]


def draw(path, results, titles):
    """`titles`: {name: title}, of all variants. Says so where gnuplot is missing."""
    gnuplot = shutil.which("gnuplot")
    if not gnuplot:
        driver.progress(f"{path} was not drawn: apt-get install gnuplot-nox")
        return
    path = pathlib.Path(path).resolve()
    text = script(path, results, titles)
    done = subprocess.run([gnuplot, "-"], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"gnuplot failed:\n{done.stderr}")


def script(path, results, titles):
    columns = min(2, len(results))
    rows = -(-len(results) // columns)
    times = [time * 1e6 for result in results for row in result["sizes"] for time in row["median"].values()]
    ticks = ", ".join(f'"{size_name(size)}" {size}' for size in TICKS)
    lines = [
        f'set terminal svg size {WIDTH * columns},{HEIGHT * rows} font "sans-serif,12" background "white"',
        f"set output {quoted(path)}",
        f"set multiplot layout {rows},{columns}",
        "set logscale xy",
        f"set yrange [{10 ** math.floor(math.log10(min(times)))}:{10 ** math.ceil(math.log10(max(times)))}]",
        f"set xtics ({ticks}) rotate by -45",
        'set format y "10^{%L}"',
        'set ylabel "time of an all-reduce, us"',
        "set grid",
        "set key outside bottom center horizontal",
    ]
    for panel, result in enumerate(results):
        lines += [f'set title "{result["ranks"]} ranks"']
        plots = []
        for number, (name, title) in enumerate(titles.items()):
            points = [(row["bytes"], row["median"][name] * 1e6) for row in result["sizes"] if name in row["median"]]
            if not points:
                continue
            lines += [f"$p{panel}_{number} << END", *(f"{size} {time}" for size, time in points), "END"]
            width = 3 if name == "paceline" else 1.5
            style = f"with linespoints lw {width} pt 7 ps 0.4 lc rgb {quoted(COLOURS[number])}"
            plots.append(f"$p{panel}_{number} {style} title {quoted(title)}")
        lines += ["plot " + ", ".join(plots)]
    return "\n".join([*lines, "unset multiplot", ""])


def quoted(text):
    return "'" + str(text).replace("'", "''") + "'"
