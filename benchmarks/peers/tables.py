"""Statistics of benchmarks/peers/run, and how they are shown."""

import driver


def ratios(rounds):
    """{peer: quartiles}, how many times paceline's time it took, within rounds."""
    peers = [name for name in rounds[0] if name != "paceline"]
    return {peer: driver.quartiles([one[peer] / one["paceline"] for one in rounds]) for peer in peers}


def time_table(result, found, missing):
    """`found`: {name: variant}, `missing`: {name: why}."""
    units = {name: "us" if name == "paceline" else "us (x paceline)" for name in found}
    rows = [["size", *(f"{one.title}, {units[name]}" for name, one in found.items())]]
    for row in result["sizes"]:
        cells = [time_cell(row, name) for name in found]
        rows.append([size_name(row["bytes"]), *cells])
    notes = [*result["notes"], *(f"{name}: {why}" for name, why in missing.items())]
    return "\n".join([driver.markdown_table(rows), *([""] if notes else []), *(f"- {note}" for note in notes)])


def time_cell(row, name):
    if name not in row["median"]:
        return "-"
    time = figure(row["median"][name] * 1e6)
    if name == "paceline":
        return time
    of = row["ratios"][name]
    return f"{time} (**{figure(of['median'])}**, {figure(of['q1'])} to {figure(of['q3'])})"


def figure_table(figures, results):
    rows = [["ranks", "figure", "", "measured"]]
    measured = {result["ranks"] for result in results}
    for one in (one for one in figures if one.ranks in measured):
        rows.append([str(one.ranks), one.text, *one.judge(results)])
    return driver.markdown_table(rows)


def figure(value):
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def size_name(size):
    for bits, unit in [(20, "MB"), (10, "KB")]:
        if size >= 1 << bits and size % (1 << bits) == 0:
            return f"{size >> bits} {unit}"
    return f"{size} B"
