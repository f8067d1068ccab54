"""Check the prose of pages, notebooks and docstrings: `python .ci/prose.py PATH...` prints `file:line: message`.

It reads Markdown, notebooks as text, and docstrings of Python files, without code, tables, formulas and addresses.
`prose.json` has the longest sentence of a page, the words to avoid with advice, and the checks of proselint.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

Faults = Iterator[tuple[int, str]]  # line and message
RULES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
AVOID = [
    (re.compile(rf"(?<![\w-])(?:{word})(?![\w-])".replace(" ", r"\s+"), re.IGNORECASE), why)
    for word, why in RULES["avoid"].items()
]
NOT_PROSE = [  # and the sign that replaces it
    (re.compile(r"^ *(```|~~~).*?^ *\1[`~]*\s*?$|<!--.*?-->|(?<=\])\([^)]*\)", re.DOTALL | re.MULTILINE), ""),
    (re.compile(r"^ *>>> .*?(?:\n\s*\n|\Z)|\$\$.*?\$\$|^ *\|.*?$", re.DOTALL | re.MULTILINE), ""),
    (re.compile(r"(?<=\n\n)(?: {4}.*\n| *\n)+"), ""),  # a block of code by its indent; docstrings have none
    (re.compile(r"(``?)(?!`)[^`]+?\1|(?<![\w$])\$[^$]+?\$(?!\d)|https?://[^\s)>]+", re.DOTALL), "¤"),
]
SENTENCE = re.compile(  # its end: a full stop before a capital, the end of a paragraph, or the next item of a list
    r"(?<!e\.g)(?<!i\.e)(?<!vs)(?<! al)[.!?][\"')*_]*\s+(?=[\"'(*_\[]*[A-Z\d¤])|\n\s*\n|\n(?=\s*(?:[-*+>]|\d+[.)])\s)"
)


def docstrings(text: str) -> str:
    """The docstrings of a Python file, on their lines."""
    lines, source, nodes = [""] * (text.count("\n") + 1), text.split("\n"), [ast.parse(text)]
    for node in nodes:  # which grows
        nodes += [inner for inner in node.body if isinstance(inner, ast.ClassDef | ast.FunctionDef)]
        if ast.get_docstring(node, clean=False):
            begin, end = node.body[0].lineno - 1, node.body[0].end_lineno
            lines[begin:end] = [re.sub(r'^\s*r?"""|^\s+|"""$', "", line) for line in source[begin:end]]
    return "\n".join(lines)


def cells(text: str) -> str:
    """The Markdown cells of a notebook in jupytext's percent format, on their lines."""
    lines, inside = text.split("\n"), False
    for number, line in enumerate(lines):
        inside = "[markdown]" in line if line.startswith("# %%") else inside
        lines[number] = line.removeprefix("#").removeprefix(" ") if inside and not line.startswith("# %%") else ""
    return "\n".join(lines)


def prose(text: str) -> str:
    """A text without code; a sign replaces names and formulas, and line breaks stay."""
    for pattern, sign in NOT_PROSE:
        text = pattern.sub(lambda match, sign=sign: sign + "\n" * match[0].count("\n"), text)
    return text


def at(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1  # the line


def words(text: str) -> Faults:
    for pattern, why in AVOID:
        yield from ((at(text, match.start()), f'"{match[0]}": {why}') for match in pattern.finditer(text))


def sentences(text: str) -> Faults:
    begin, longest, ends = 0, RULES["longest sentence"], [match.end() for match in SENTENCE.finditer(text)]
    for end in [*ends, len(text)]:
        parts = [word for word in text[begin:end].split() if re.search(r"[\w¤]", word)]
        if len(parts) > longest:
            place, first = text.index(parts[0], begin), " ".join(parts[:5])
            yield at(text, place), f"a sentence of {len(parts)} words; at most {longest}: {first} ..."
        begin = end


def proselint(text: str) -> Faults:
    from proselint import checks, registry, tools

    if not registry.CheckRegistry().checks:
        registry.CheckRegistry().register_many(checks.__register__)
    for result, _ in tools.LintFile("text", text).lint({"max_errors": 10_000, "checks": RULES["proselint"]}):
        yield at(text, result.span[0] - 1), f"{result.message} ({result.check_path})"  # it adds a line break first


def faults(text: str, kind: str) -> list[tuple[int, str]]:
    """The faults of a file of this suffix."""
    page = kind == ".md" or "\n# %% [markdown]" in text
    text = prose(text if kind == ".md" else cells(text) if page else docstrings(text))
    return sorted([*words(text), *(sentences(text) if page else ()), *proselint(text)]) if text.strip() else []


def main(paths: list[Path]) -> int:
    """The number of faults in these files and folders, which are printed."""
    inside = {file for path in paths for end in ("md", "py", "pyi") for file in path.rglob(f"*.{end}")}
    files = [file for file in {*paths, *inside} if not file.is_dir() and "_build" not in file.parts]
    found = [(file, *fault) for file in sorted(files) for fault in faults(file.read_text("utf-8"), file.suffix)]
    sys.stdout.writelines(f"{file}:{line}: {message}\n" for file, line, message in found)
    return len(found)


if __name__ == "__main__":
    sys.exit(1 if main([Path(path) for path in sys.argv[1:]]) else 0)
