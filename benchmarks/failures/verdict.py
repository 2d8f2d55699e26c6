"""How the programs beside this one show where they are, and what was reached."""

import sys


def progress(part, done, total):
    if sys.stderr.isatty() or done == total or done % 50 == 0:
        print(f"\r{part}: {done} of {total}", end="\n" if done == total or not sys.stderr.isatty() else "",
              file=sys.stderr, flush=True)


class Verdict:
    """Prints figures beside their goals, and counts those that were missed."""

    def __init__(self):
        self.missed = 0

    def line(self, what, figure, reached, goal):
        self.missed += not reached
        print(f"  {what:<52} {figure:>14}   {'reached' if reached else 'MISSED':<8} ({goal})", flush=True)

    def wrong(self, messages):
        for message in messages[:5]:
            print("  " + message.replace("\n", "\n    "))
