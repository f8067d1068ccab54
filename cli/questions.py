"""The names of all studies and their questions, read from source files, without heavy imports."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STUDIES, SCRIPTS = ROOT / "models" / "studies", ROOT / "docs" / "replications"


def modules() -> dict[str, str]:
    """The module of each study, by the study's name."""
    table = (STUDIES / "study.py").read_text(encoding="utf-8")
    return dict(re.findall(r'^    "([a-z-]+)": "(\w+)"', table, re.MULTILINE))


def question(name: str) -> str:
    """The first line of the docstring of a study; of a script without a checkout, where it is."""
    file = f"{modules()[name]}.py"
    for folder in (STUDIES, SCRIPTS):
        if (folder / file).exists():
            source = (folder / file).read_text(encoding="utf-8")
            return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    return f"a script of a checkout: docs/replications/{file}"
