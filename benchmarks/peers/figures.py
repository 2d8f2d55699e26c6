"""The figures that the project has set itself for all-reduces beside its peers, on two cores."""

import dataclasses

from tables import figure, size_name

KB, MB = 1 << 10, 1 << 20


@dataclasses.dataclass(frozen=True)
class Times:
    """Paceline is at least `least` times faster than `peer`, at every measured size from `first` to `last` bytes."""

    ranks: int
    text: str
    peer: str
    first: int
    last: int
    least: float

    def judge(self, results):
        """(verdict, what was measured)"""
        found = {
            row["bytes"]: row["ratios"][self.peer]["median"]
            for row in rows_of(self.ranks, results)
            if self.first <= row["bytes"] <= self.last and self.peer in row["ratios"]
        }
        if not found:
            return "not measured", ""
        missed = {size: ratio for size, ratio in found.items() if ratio < self.least}
        if not missed:
            worst = min(found, key=found.get)
            least = f"the least of {len(found)} sizes" if len(found) > 1 else "the only size measured"
            return "reached", f"{figure(found[worst])} at {size_name(worst)}, {least}"
        shown = ", ".join(f"{figure(ratio)} at {size_name(size)}" for size, ratio in missed.items())
        return "missed", f"{shown}; reached at {len(found) - len(missed)} of {len(found)} sizes"


@dataclasses.dataclass(frozen=True)
class Under:
    """Paceline takes less than `most_s` for `size` bytes."""

    ranks: int
    text: str
    size: int
    most_s: float

    def judge(self, results):
        for row in rows_of(self.ranks, results):
            if row["bytes"] == self.size:
                call_s = row["median"]["paceline"]
                return "reached" if call_s < self.most_s else "missed", f"{figure(call_s * 1e6)} us"
        return "not measured", ""


def rows_of(ranks, results):
    return [row for result in results if result["ranks"] == ranks for row in result["sizes"]]


FIGURES = [
    Times(2, "8 B to 4 KB: 1.5 times faster than Open MPI", "openmpi", 8, 4 * KB, 1.5),
    Times(2, "1 to 256 MB: 6 times faster than Open MPI", "openmpi", MB, 256 * MB, 6),
    Times(2, "1 to 256 MB: 6 times faster than MPICH", "mpich", MB, 256 * MB, 6),
    Times(2, "1 to 256 MB: 12 times faster than Gloo", "gloo", MB, 256 * MB, 12),
    Under(4, "8 B: under 5 us", 8, 5e-6),
    Times(4, "all sizes: faster than Open MPI", "openmpi", 4, 256 * MB, 1),
    Times(4, "from 1 MB: 5 times faster than Open MPI", "openmpi", MB, 256 * MB, 5),
    Under(8, "8 B: under 15 us", 8, 15e-6),
    Under(16, "8 B: under 25 us", 8, 25e-6),
]
