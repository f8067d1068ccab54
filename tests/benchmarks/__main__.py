"""Every benchmark, one after another: `python tests/benchmarks`, on a quiet machine, with the extra `bench`.

Takes about fifteen minutes; each `bench_*.py` also runs alone, and `stack_languages.py`, which trains, only so.
"""

import runpy
from pathlib import Path

for script in sorted(Path(__file__).parent.glob("bench_*.py")):
    print(f"\n## {script.stem}\n", flush=True)
    runpy.run_path(str(script), run_name="__main__")
