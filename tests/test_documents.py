"""Every Python block of the README and of the documents runs as it stands, in order."""

import ast
import re
from pathlib import Path

import matplotlib as mpl
import pytest
import samplehold
from examples import slow

ROOT = Path(samplehold.__file__).parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
README = ROOT / "README.md"
DOCUMENTS = [path for path in sorted((ROOT / "docs").rglob("*.md")) if BLOCK.search(path.read_text())]
BESIDE = {"dynamax.md": "dynamax"}  # pages whose blocks need a package that the extra of the tests has not

pytestmark = pytest.mark.kernels


@pytest.mark.slow
@pytest.mark.parametrize("path", [README, *map(slow, DOCUMENTS)], ids=lambda path: path.name)
def test_every_block_runs(path, tmp_path, monkeypatch):
    if path.name in BESIDE:
        pytest.importorskip(BESIDE[path.name])
    (tmp_path / "notebooks").symlink_to(ROOT / "notebooks")  # whose data they read; what they write stays here
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    names = {"__name__": f"document_{path.stem}"}
    before = {file.name for file in tmp_path.iterdir()}
    for number, block in enumerate(BLOCK.findall(path.read_text()), start=1):
        exec(compile(block, f"{path.name}, block {number}", "exec"), names)
    assert path != README or {file.name for file in tmp_path.iterdir()} == before


LIBRARIES = {"sh", "torch", "pd", "np", "pyro", "plt", "az"}


@pytest.mark.parametrize("number", range(len(BLOCK.findall(README.read_text()))))
def test_a_block_of_the_readme_imports_the_libraries_that_it_uses(number):
    tree = ast.parse(BLOCK.findall(README.read_text())[number])
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & LIBRARIES
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    assert used == {alias.asname or alias.name for node in imports for alias in node.names} & LIBRARIES
