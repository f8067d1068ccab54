"""Docstrings as this project writes them, in the form that Sphinx reads.

A name between backticks is a link if the site has its page, and code otherwise. Formulas stand between dollars, and
`[*batch, T]` is a shape.
"""

import inspect
import re
from typing import Any

import samplehold as sh

PLAIN = re.compile(r"\||(?<![\w*])\*(?=\w+(?![\w*]))")  # |x| and *batch, which are no marks
SHOWN = re.compile(r"^( *)\$\$(.+?)\$\$\s*$", re.DOTALL | re.MULTILINE)
FORMULA = re.compile(r"(?<![\w`$])\$([^$\n]+(?:\n[^$\n]+)?)\$(?![\w$])")
PIECE = re.compile(r"(:math:`[^`]*`|``.+?``|`[^`]*`|^ *\.\. math::.*$)", re.DOTALL | re.MULTILINE)
PAGE = re.compile(r"\bdocs/([\w/]+)\.md")
ROOMS = [name for name in sh.__all__ if inspect.ismodule(getattr(sh, name))]
PAGES = {name: f"samplehold.{name}" for name in sh.__all__} | {
    name: f"samplehold.{room}.{name}" for room in ROOMS for name in dir(getattr(sh, room)) if not name.startswith("_")
}


def rewrite(app: Any, kind: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Change the lines of one docstring."""
    text = SHOWN.sub(lambda found: f"\n{found[1]}.. math:: {_line(found[2])}\n", "\n".join(lines))
    text = FORMULA.sub(lambda found: f":math:`{_line(found[1])}`", text)
    pieces = PIECE.split(text)
    pieces[::2] = [PAGE.sub(r":doc:`/\1`", PLAIN.sub(r"\\\g<0>", piece)) for piece in pieces[::2]]
    pieces[1::2] = [_linked(piece) if re.match("`[^`]", piece) else piece for piece in pieces[1::2]]
    lines[:] = "".join(pieces).split("\n")


def _line(text: str) -> str:
    return " ".join(text.split())


def _linked(code: str) -> str:
    text = _line(code.strip("`"))
    if page := PAGE.fullmatch(text):
        return f":doc:`/{page[1]}`"
    head, *rest = re.match(r"(?:sh\.)?([\w.]*)", text)[1].split(".")
    if head in ROOMS and rest:
        head, *rest = rest
    page = PAGES.get(head)
    if page is None or "<" in text:
        return f"``{text}``"
    return f":py:obj:`{text} <{'.'.join([page, *rest])}>`"


def skip(app: Any, kind: str, name: str, member: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out what torch's and scikit-learn's classes have by themselves."""
    function = inspect.unwrap(getattr(member, "fget", None) or getattr(member, "func", None) or member)
    home = getattr(function, "__module__", None) or "samplehold"
    return None if home.startswith("samplehold") else True


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", rewrite, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True}
