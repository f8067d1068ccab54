"""`bench_portable`: this library and the installed peers, in one run, on this machine's devices.

The contenders of a size run in turn, so other work on the machine affects all of them equally. The first call of each,
which compiles, is listed separately. For the other calls, the table has the least and the median time. Memory is the
most that a call takes beyond the memory before it: of the process on a CPU, of torch's allocator on a GPU.
"""

import gc
import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from portable_cases import CASES, Case, Contender, Contenders, Missing, Size
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from samplehold import kernels
from samplehold.cli.printing import print_whole
from samplehold.cli.results import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEVICES = "cpu", "cuda"
PACKAGES = ("samplehold", "torch", "triton", "numpy", "hmmlearn", "dynamax", "jax", "statsmodels", "pykalman")
PACKAGES += ("pyro-ppl", "flash-linear-attention")
SECONDS = {True: 0.5, False: 3.0}  # for the turns of one size, by whether the run is quick
TURNS = 3  # the least number of turns
LONG = 5.0  # seconds of a call beyond which it is not repeated
NOT_MEASURED = "not measured"
COLUMNS = ("work", "B", "T", "K", "by", "device", "ms", "median", "of samplehold's", "first call", "MB", "note")


@dataclass(frozen=True)
class Row:
    """The result of one contender for one size; None if it was not measured, and `note` says why."""

    work: str
    size: Size
    by: str
    device: str
    least_ms: float | None = None
    median_ms: float | None = None
    first_ms: float | None = None
    memory_mb: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Report:
    """All rows of a run, and the machine."""

    machine: dict[str, Any]
    rows: list[Row]


# ---- measuring -------------------------------------------------------------------------------------------------------


def measured(name: str, case: Case, size: Size, device: str, seconds: float) -> list[Row]:
    """A row for each contender of a case."""
    there = device == "cpu" or (device == "cuda" and torch.cuda.is_available())
    contenders = case.contenders(size, torch.device(device)) if there else _named(case)
    gc.collect()
    begun = {by: _first(run, device) for by, run in contenders.items()}
    short = {by: run for by, run in contenders.items() if not isinstance(run, Missing) and begun[by][0] <= LONG}
    times, rows = _in_turns(short, device, seconds), []
    for by, run in contenders.items():
        if isinstance(run, Missing):
            rows.append(Row(name, size, by, device, note=run.why))
        else:
            first, memory = begun[by]
            timings = times.get(by, [first])
            least, median = min(timings), statistics.median(timings)
            rows.append(Row(name, size, by, device, 1e3 * least, 1e3 * median, 1e3 * first, memory))
    return rows


def _named(case: Case) -> Contenders:
    """The contenders, marked as missing because their device does not exist."""
    smallest = Size(1, 10, 2)
    return dict.fromkeys(case.contenders(smallest, torch.device("cpu")), Missing("there is no such device"))


def _first(run: Contender, device: str) -> tuple[float, float | None]:
    """Seconds of the first call, and megabytes of the second."""
    if isinstance(run, Missing):
        return 0.0, None
    first = _seconds(run, device)
    return first, None if first > LONG else _memory(run, device)


def _in_turns(runs: dict[str, Callable[[], Any]], device: str, seconds: float) -> dict[str, list[float]]:
    """Seconds of the calls of each, in turn."""
    times: dict[str, list[float]] = {by: [] for by in runs}
    end = time.perf_counter() + seconds
    while runs and (time.perf_counter() < end or len(times[next(iter(runs))]) < TURNS):
        for by, run in runs.items():
            times[by].append(_seconds(run, device))
    return times


def _seconds(run: Callable[[], Any], device: str) -> float:
    _settle(device)
    start = time.perf_counter()
    run()
    _settle(device)
    return time.perf_counter() - start


def _settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _memory(run: Callable[[], Any], device: str) -> float | None:
    """Megabytes at the peak of a call beyond those before it; None if the system does not report them."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    try:
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before = _resident("VmRSS")
        run()
        return max(0.0, (_resident("VmHWM") - before) / 2**10)
    except OSError:
        return None


def _resident(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(field + ":")))


def machine() -> dict[str, Any]:
    """The facts about the machine that a comparison needs."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "versions": versions,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "gpu": gpu,
        "date": time.strftime("%Y-%m-%d"),
    }


# ---- showing ---------------------------------------------------------------------------------------------------------


def cells(row: Row, rows: Sequence[Row]) -> list[str]:
    """The columns of a row, with its time relative to the first contender of the same size and device."""
    first = next(r for r in rows if (r.work, r.size, r.device) == (row.work, row.size, row.device))
    names = [CASES[row.work].title, *map(str, row.size), row.by, row.device]
    if row.least_ms is None:
        return [*names, NOT_MEASURED, *[""] * 4, row.note]
    ratio = None if first.least_ms is None else row.least_ms / first.least_ms
    numbers = row.least_ms, row.median_ms, ratio, row.first_ms, row.memory_mb
    return [*names, *("" if number is None else f"{number:.3g}" for number in numbers), row.note]


def markdown(report: Report) -> str:
    """The rows as a table, with the machine above it."""
    machine, lines = report.machine, []
    versions = ", ".join(
        f"{name} {version}" if version else f"no {name}" for name, version in machine["versions"].items()
    )
    lines.append(
        f"Python {machine['python']}, {versions}; {machine['processors']} processors, {machine['threads']} threads, "
        f"{machine['gpu'] or 'no GPU'}; {machine['date']}.\n"
    )
    lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cells(row, report.rows)) + " |" for row in report.rows]
    return "\n".join(lines) + "\n"


def _shown(rows: Sequence[Row]) -> Table:
    table = Table(title=CASES[rows[0].work].title, title_justify="left")
    for column in COLUMNS[1:]:
        table.add_column(column, justify="left" if column in ("by", "device", "note") else "right")
    for row in rows:
        table.add_row(*map(escape, cells(row, rows)[1:]))
    return table


def figure(rows: Sequence[Row]) -> "Figure | None":
    """Time and memory of one case against T, B and K, each around the same middle size; None if only one size was
    measured."""
    from matplotlib.figure import Figure

    done = [row for row in rows if row.least_ms is not None]
    if len({row.size for row in done}) < 2:
        return None
    middle = rows[0].size
    drawn = Figure(figsize=(11, 6.5), layout="constrained")
    axes = drawn.subplots(2, 3)
    for column, axis in enumerate(("T", "B", "K")):
        along = [row for row in done if row.size._replace(**{axis: getattr(middle, axis)}) == middle]
        for by, device in dict.fromkeys((row.by, row.device) for row in along):
            points = sorted((getattr(r.size, axis), r) for r in along if (r.by, r.device) == (by, device))
            label = by if len({r.device for r in along}) == 1 else f"{by}, {device}"
            axes[0, column].loglog([at for at, _ in points], [r.least_ms for _, r in points], "o-", label=label)
            known = [(at, r.memory_mb) for at, r in points if r.memory_mb]
            axes[1, column].loglog([at for at, _ in known], [memory for _, memory in known], "o-", label=label)
        others = ", ".join(f"{name} = {getattr(middle, name)}" for name in ("B", "T", "K") if name != axis)
        axes[0, column].set(title=others, ylabel="ms" if column == 0 else "")
        axes[1, column].set(xlabel=axis, ylabel="MB" if column == 0 else "")
    axes[0, 0].legend(fontsize="small")
    drawn.suptitle(CASES[rows[0].work].title)
    return drawn


# ---- the command -----------------------------------------------------------------------------------------------------


def check_cases(names: str | None) -> list[str]:
    """The cases of a comma-separated list; None: all. ValueError for an unknown case."""
    if names is None:
        return list(CASES)
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        if name not in CASES:
            raise ValueError(f"--only: got {name!r}, expected some of {', '.join(CASES)}.")
    if not chosen:
        raise ValueError(f"--only: got no name, expected some of {', '.join(CASES)}.")
    return list(dict.fromkeys(chosen))


def run(names: Iterable[str], quick: bool, devices: Sequence[str]) -> Iterator[list[Row]]:
    """The rows of each case."""
    for name in names:
        case = CASES[name]
        sizes = case.sizes[: case.quick] if quick else case.sizes
        results = []
        for device in devices:
            for size in sizes:
                with kernels("native"):
                    results += measured(name, case, size, device, SECONDS[quick])
        yield results


def bench(names: list[str], quick: bool, devices: Sequence[str], out: Path | None, console: Console) -> Report:
    """Measure, print a table for each case, and write `bench.json`, `bench.md` and a figure for each case into a
    folder."""
    where, rows = machine(), []
    for results in run(names, quick, devices):
        rows += results
        print_whole(console, _shown(results))
    report = Report(where, rows)
    if out is not None:
        with replacing(out) as folder:
            _write(report, folder)
        console.print(f"wrote {escape(str(out))}", soft_wrap=True, highlight=False)
    return report


def _write(report: Report, folder: Path) -> None:
    rows = [asdict(row) | {"size": row.size._asdict()} for row in report.rows]
    (folder / "bench.json").write_text(json.dumps({"machine": report.machine, "rows": rows}, indent=1) + "\n", "utf-8")
    (folder / "bench.md").write_text(markdown(report), encoding="utf-8")
    for name in dict.fromkeys(row.work for row in report.rows):
        drawn = figure([row for row in report.rows if row.work == name])
        if drawn is not None:
            drawn.savefig(folder / f"{name}.png", dpi=120)
