"""Studies are scripts of docs/replications in a checkout; an installed package has none."""

import ast
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[1] / "docs" / "replications"


def check_checkout() -> None:
    """ValueError in an installed package."""
    if not (SCRIPTS / "study.py").exists():
        raise ValueError(
            "studies are read from a checkout of the repository, docs/replications/*.py, which is not installed; "
            "clone it, and install it with `pip install -e .`."
        )


def script(name: str) -> Any:
    """A script, imported."""
    check_checkout()
    if str(SCRIPTS) not in sys.path:
        sys.path.append(str(SCRIPTS))
    return import_module(name)


def modules() -> dict[str, str]:
    """The script of each study, by the study's name, read without heavy imports; none in an installed package."""
    table = SCRIPTS / "study.py"
    text = table.read_text(encoding="utf-8") if table.exists() else ""
    return dict(re.findall(r'^    "([a-z-]+)": "(\w+)"', text, re.MULTILINE))


def question(module: str) -> str:
    """The first line of the docstring of a study."""
    source = (SCRIPTS / f"{module}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
