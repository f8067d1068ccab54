"""The package as it is shipped."""

import tomllib
from pathlib import Path

import samplehold

ROOT = Path(samplehold.__file__).parent
NOT_CODE = {"tests", "notebooks", "build", "dist", "docs"}


def test_every_folder_of_code_is_in_the_wheel():
    """A folder left out of `packages` works in an editable install and is missing from the wheel."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {"samplehold"}
    for init in ROOT.rglob("__init__.py"):
        parts = init.parent.relative_to(ROOT).parts
        if parts and not parts[0].startswith(".") and parts[0] not in NOT_CODE:
            folders.add(".".join(("samplehold", *parts)))
    assert set(listed) == folders


def test_every_public_name_exists_and_is_documented():
    for name in samplehold.__all__:
        assert getattr(samplehold, name).__doc__, name


def test_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [name for group in project["optional-dependencies"].values() for name in group]
    pinned = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    for requirement in wanted:
        name = requirement.split(">")[0].split("[")[0].lower()
        assert name in pinned, name
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()


def test_imports_run_one_way():
    """models -> switching -> inference, and inference knows no Pyro."""
    for path in (ROOT / "inference").rglob("*.py"):
        text = path.read_text()
        assert "import pyro" not in text, path
        assert "from pyro" not in text, path
        assert "switching" not in [
            line.split()[1].strip(".").split(".")[0] for line in text.splitlines() if line.startswith("from .")
        ]
    for path in (ROOT / "switching").rglob("*.py"):
        assert "..models" not in path.read_text(), path
