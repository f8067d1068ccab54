"""Every benchmark, in order, into `docs/quality/benchmarks.md`: `python tests/benchmarks`, with the extra `bench`.

This takes about half an hour on a quiet machine. Names of scripts, `python tests/benchmarks bench_kalman`, replace
their sections alone.
Each `bench_*.py` also runs alone and prints its results. `stack_languages.py` (which trains), `fit_quality.py` (which
compares optima), `interval_coverage.py`, `forgetting_windows.py` only run alone.
"""

import ast
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
OUT = FOLDER.parents[1] / "docs" / "quality" / "benchmarks.md"
TITLES = {  # in the order of the page: what users look for first
    "bench_inference": "Beside hmmlearn, dynamax and Pyro",
    "bench_first_tries": "First tries",
    "bench_kalman": "Kalman filters and smoothers",
    "bench_inputs": "Inputs",
    "bench_linear": "Linear models",
    "bench_networks": "Networks",
    "bench_segments": "Segments",
    "bench_stack": "Stacks",
    "bench_startup": "A new process",
    "bench_structures": "Structures of one series",
    "bench_switching": "Switching linear models",
    "bench_switching_learning": "Learning switching linear models",
    "bench_vmp": "Message passing",
    "bench_subjects": "Subjects",
    "bench_large_data": "Data in files and processes",
    "bench_elman": "Elman networks",
    "bench_gpu_kernels": "GPU kernels",
    "bench_portable": "This machine's devices",
}
OPTIONS = {"bench_portable": ("--markdown",)}
PEERS = (
    "torch",
    "numpy",
    "pyro-ppl",
    "hmmlearn",
    "dynamax",
    "jax",
    "statsmodels",
    "filterpy",
    "pykalman",
    "bayespy",
)


def version(name: str) -> str:
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return f"without {name}"


def main(names: list[str]) -> None:
    titled, others = [FOLDER / f"{stem}.py" for stem in TITLES], sorted(FOLDER.glob("bench_*.py"))
    scripts = [*titled, *(other for other in others if other not in titled)]
    if unknown := set(names) - {script.stem for script in scripts}:
        sys.exit(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(s.stem for s in scripts)}")
    _, *sections = re.split(r"(?m)^(?=## )", OUT.read_text(encoding="utf-8"))
    page = {section.partition("\n")[0].removeprefix("## "): section for section in sections}
    for script in scripts:
        if names and script.stem not in names:
            continue
        docstring = ast.get_docstring(ast.parse(script.read_text())) or ""
        print(script.stem, flush=True)
        command = [sys.executable, "-W", "ignore", script, *OPTIONS.get(script.stem, ())]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{script.name} failed:\n{done.stderr}")
        title = TITLES.get(script.stem, script.stem)
        page[title] = f"## {title}\n\n{docstring}\n\n{done.stdout.strip()}\n\n"
        write(page)
    print(f"wrote {OUT}")


def write(page: dict[str, str]) -> None:
    """The head, and each section that there is: those with a title in that order, then the others."""
    versions = ", ".join(version(name) for name in PEERS)
    head = (
        "# Benchmarks\n\n`python tests/benchmarks` (extra `bench`) writes this page. It runs every script once, one "
        "after another; with names of scripts, those alone. Both sides get the same arrays, log tables in and "
        "posteriors out, at the peer's precision. Times are medians over turns. A ratio above 1 means that samplehold "
        "is faster. Missed aims are marked. [fit_quality.md](fit_quality.md) measures the optima of fits, "
        "[interval_coverage.md](interval_coverage.md) the coverage of intervals.\n\n"
        f"Python {platform.python_version()}, {versions}; {os.cpu_count()} processors.\n\n"
    )
    titles = [*(title for title in TITLES.values() if title in page), *(t for t in page if t not in TITLES.values())]
    OUT.write_text(head + "".join(page[title] for title in titles).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
