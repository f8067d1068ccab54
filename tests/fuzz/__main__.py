"""Calls of every public function with valid and spoiled arguments: `python tests/fuzz [calls] [--seed S] [--only N]`.

Every call must end in a right finite answer, or in a `ValueError` or `TypeError` of this package that starts with the
name of an argument. What ends otherwise is a finding; findings of one function, one kind of error and one place are a
class, of which one is shown with the line that repeats it. Exits with 1 where there are any.
"""

import argparse
import sys
import time
import traceback
import warnings
from collections import defaultdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from runs import Finding, outcome  # noqa: E402


def main() -> int:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("calls", type=int, nargs="?", default=2000)
    reader.add_argument("--seed", type=int, default=0)
    reader.add_argument("--only", type=int, help="the number of one call, to repeat it with its traceback")
    reader.add_argument("--function", help="only calls whose name holds this")
    reader.add_argument("--times", action="store_true", help="show where the time goes")
    given = reader.parse_args()
    warnings.simplefilter("ignore")
    if given.only is not None:
        finding = outcome(given.seed, given.only, given.function)
        if finding is not None and finding.error is not None:
            traceback.print_exception(finding.error)
        print(finding or "nothing wrong")
        return finding is not None
    classes: dict[tuple[str, ...], list[Finding]] = defaultdict(list)
    spent: dict[str, float] = defaultdict(float)
    begun = time.perf_counter()
    for number in range(given.calls):
        before = time.perf_counter()
        finding = outcome(given.seed, number, given.function, spent)
        if finding is not None:
            classes[finding.kind].append(finding)
        if time.perf_counter() - before > 20:
            print(f"slow: --seed {given.seed} --only {number}", flush=True)
    for kind, findings in sorted(classes.items(), key=lambda pair: -len(pair[1])):
        print(f"{len(findings):5d}  {' | '.join(kind)}\n       {findings[0]}")
    if given.times:
        for name, seconds in sorted(spent.items(), key=lambda pair: -pair[1])[:25]:
            print(f"{seconds:8.2f} s  {name}")
    found = sum(map(len, classes.values()))
    took = time.perf_counter() - begun
    print(f"{given.calls} calls, seed {given.seed}: {found} findings in {len(classes)} classes; {took:.0f} s")
    return bool(classes)


if __name__ == "__main__":
    sys.exit(main())
