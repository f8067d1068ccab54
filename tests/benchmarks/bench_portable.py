"""This library and the installed peers, on whichever device is there: `python tests/benchmarks/bench_portable.py`.

It takes the peers that are installed; `--help` lists its options. B sequences of T steps, with K states, features or
units. Times are the least and the median of calls in turns; the first call, which compiles, is told apart. Memory is
the most that a call takes beyond what was there before it: of the process on a CPU, where it is 0 for what fits into
memory that was freed before.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from portable import DEVICES, bench, check_cases, markdown
from rich.console import Console
from samplehold.cli.app import one_line_errors
from samplehold.cli.results import check_folder, check_new

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class DeviceName(StrEnum):
    """The device of a benchmark."""

    ALL = "all"
    CPU = "cpu"
    CUDA = "cuda"


@app.command()
def measure(
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for bench.json, bench.md and figures; by default nothing is written."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One size of each case, in a minute or two.")] = False,
    only: Annotated[
        str | None, typer.Option(help="Some of markov, copy, kalman, em, vmp, scan, mingru, separated by commas.")
    ] = None,
    device: Annotated[DeviceName, typer.Option(help="Device to measure on; missing devices are skipped.")] = (
        DeviceName.ALL
    ),
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown at the end.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Measure time and memory of this library and of installed peers, for several T, B and K."""
    with one_line_errors():
        chosen = check_cases(only)
        if out is not None:
            check_folder(out)
            check_new([out / "bench.json", out / "bench.md", *(out / f"{name}.png" for name in chosen)], force)
        devices = DEVICES if device is DeviceName.ALL else (device.value,)
        report = bench(chosen, quick, devices, out, Console(stderr=as_markdown))
        if as_markdown:
            print(markdown(report))


if __name__ == "__main__":
    app()
