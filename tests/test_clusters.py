"""Ray and Spark start the processes that share a fit: the lines of docs/guides/machines.md, run as they stand there.

They need the extra `clusters`, and Spark needs Java.
"""

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest
import samplehold
from test_documents import BLOCK

PAGE = (Path(samplehold.__file__).parent / "docs" / "guides" / "machines.md").read_text()
LINES = dict(zip(("ray", "pyspark"), re.findall(r"^```py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE), strict=True))
SIZES = {"num_workers=16": "num_workers=2", "num_processes=16, local_mode=False": "num_processes=2, local_mode=True"}

APART = """
Path("states-0.parquet").rename("alone.parquet")
Path("fit.checkpoint").unlink()
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", LINES)
def test_the_lines_of_the_page_share_the_work(package, tmp_path):
    pytest.importorskip(package)
    if package == "pyspark" and shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    work, alone = BLOCK.findall(PAGE)[0].split("\nfit = work()")
    lines = LINES[package]
    for size, small in SIZES.items():
        lines = lines.replace(size, small)
    inside = textwrap.indent(f"fit = work(){alone}{APART}{lines}", "    ")
    (tmp_path / "page.py").write_text(f"{work}\nif __name__ == '__main__':\n{inside}")
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    together = pd.concat([pd.read_parquet(tmp_path / f"states-{rank}.parquet") for rank in range(2)], ignore_index=True)
    pd.testing.assert_frame_equal(together, pd.read_parquet(tmp_path / "alone.parquet"), rtol=1e-8, atol=1e-8)
