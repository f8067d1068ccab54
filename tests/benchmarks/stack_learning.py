"""Whether stack networks find the use of their stack from their default start, whatever the seed and the threads.

`python tests/benchmarks/stack_learning.py` trains each on marked reversal, as `stack_languages.py` does, and writes
`docs/background/stack_learning.md`: nats per symbol above the exact bound on strings of up to 40 symbols, after 1500
updates, by seed, at one thread and at two. `--networks`, `--seeds`, `--threads` and `--updates` choose less, and print
it only.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from stack_languages import LANGUAGES, NETWORKS, STOP, excess, train

LANGUAGE, AIM, LONGEST = "marked reversal", 0.02, 40
PAGE = Path(__file__).parents[2] / "docs" / "background" / "stack_learning.md"
HEAD = """# Do stack networks learn from their default start?

`python tests/benchmarks/stack_learning.py` trains networks on marked reversal. The table shows cross-entropy above the
exact bound, in nats per symbol (the end symbol included), on strings of up to 40 symbols. Controllers have 20 units,
and training takes 1500 updates by Adam on fresh batches of 16 strings. No seed is left out. Seconds are processor
seconds.
"""


def rows(networks: list[str], seeds: int, threads: list[int], updates: int) -> Iterator[str]:
    """The lines of the table."""
    numbers = " | ".join(f"seed {seed}" for seed in range(seeds))
    yield f"| network | threads | {numbers} | within {AIM} | seconds a seed |"
    yield f"|---|---|{'---|' * seeds}---|---|"
    language = LANGUAGES[LANGUAGE]
    for name in networks:
        for n in threads:
            torch.set_num_threads(n)
            begun = time.process_time()
            models = (train(name, language, seed, updates) for seed in range(seeds))
            found = [excess(model, language, 1, LONGEST, stop=STOP) for model in models]
            taken = (time.process_time() - begun) / seeds
            solved = sum(x < AIM for x in found)
            yield f"| {name} | {n} | {' | '.join(f'{x:.3f}' for x in found)} | {solved} of {seeds} | {taken:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--updates", type=int, default=1500)
    options = parser.parse_args()
    table = []
    for line in rows(options.networks, options.seeds, options.threads, options.updates):
        print(line, flush=True)
        table.append(line)
    if vars(options) == vars(parser.parse_args([])):
        notes = PAGE.read_text().partition("\n## ")[1:] if PAGE.exists() else ()
        PAGE.write_text("\n".join([HEAD, *table, "".join(notes)]))


if __name__ == "__main__":
    main()
