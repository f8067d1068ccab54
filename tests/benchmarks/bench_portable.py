"""What `samplehold bench` measures, on whichever device is there: `python tests/benchmarks/bench_portable.py`.

The command is part of the package: it takes the peers that are installed, and needs nothing else of this folder. B
sequences of T steps, with K states, features or units. Times are the least and the median of calls in turns; the first
call, which compiles, is told apart. Memory is the most that a call takes beyond what was there before it: of the
process on a CPU, where it is 0 for what fits into memory that was freed before.
"""

from rich.console import Console
from samplehold.cli.bench import DEVICES, bench, markdown
from samplehold.cli.bench_cases import CASES

if __name__ == "__main__":
    print(markdown(bench(list(CASES), False, DEVICES, None, Console(stderr=True))))
