"""The names of all studies and their questions, read from source files, without heavy imports."""

import ast
import re
from pathlib import Path

STUDIES = Path(__file__).parents[1] / "models" / "studies"


def modules() -> dict[str, str]:
    """The module of each study, by the study's name."""
    table = (STUDIES / "study.py").read_text(encoding="utf-8")
    return dict(re.findall(r'^    "([a-z-]+)": "(\w+)"', table, re.MULTILINE))


def question(name: str) -> str:
    """The first line of the docstring of a study."""
    source = (STUDIES / f"{modules()[name]}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
