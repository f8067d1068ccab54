"""Dotted names of this library in docstrings and pages lead to something. Files are parsed, and nothing is imported."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import samplehold

ROOT = Path(samplehold.__file__).parent
DOTTED = re.compile(r"`((?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*)(?=[`(\[])")
FILES = {"csv", "json", "md", "nc", "parquet", "png", "py", "safetensors"}
OTHERS = ("automata.fa.", "sh.__")  # automata-lib's modules are called as a folder of ours


def parsed() -> Iterator[tuple[tuple[str, ...], ast.Module]]:
    """Every file of the library by the parts of its module, with its stubs."""
    paths = [
        path for room in ("inference", "switching", "models", "cli", "face") for path in (ROOT / room).rglob("*.py*")
    ]
    for path in [*paths, ROOT / "__init__.pyi"]:
        if path.suffix in (".py", ".pyi"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield (parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(path.read_text(encoding="utf-8"))


def defined(body: list[ast.stmt]) -> Iterator[str]:
    """The names that statements of a module or a class define, also below `if` and `try`."""
    for node in (inner for statement in body for inner in flattened(statement)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def flattened(node: ast.stmt) -> Iterator[ast.stmt]:
    yield node
    if isinstance(node, ast.If | ast.Try):
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.stmt):
                yield from flattened(inner)


class Names:
    """What there is: names of modules, and members of classes with those of their bases."""

    def __init__(self) -> None:
        self.modules: dict[tuple[str, ...], set[str]] = defaultdict(set)
        self.members: dict[str, set[str]] = defaultdict(set)
        bases: dict[str, set[str]] = defaultdict(set)
        for parts, tree in parsed():
            self.modules[parts] |= set(defined(tree.body))
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    inside = (
                        n for n in ast.walk(node) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "self"
                    )
                    self.members[node.name] |= {*defined(node.body), *(n.attr for n in inside)}
                    bases[node.name] |= {ast.unparse(base).partition("[")[0].split(".")[-1] for base in node.bases}
        for _ in range(6):  # as deep as classes derive
            for name, above in bases.items():
                self.members[name] |= set().union(*(self.members.get(base, set()) for base in above))

    def has(self, name: str) -> bool:
        """Whether a dotted name that starts with a word of ours leads to something; others are left alone."""
        first, *rest = parts = name.split(".")
        if first in ("samplehold", "sh"):
            return any(self.leads(tuple(rest), (*room, *rest)) for room in ((), ("face",)))
        if first in self.members:
            return rest[0] in self.members[first]
        known = [module for module in self.modules if first in module]
        if not known:
            return True
        ends = (module[: module.index(first)] for module in known)
        if any(self.leads(tuple(parts), (*begin, *parts)) for begin in ends):
            return True
        is_folder = any(module[-1] != first for module in known)
        return not is_folder and any(parts[1] in members for members in self.members.values())  # of an object

    def leads(self, parts: tuple[str, ...], path: tuple[str, ...]) -> bool:
        if path in self.modules or any(module[: len(path)] == path for module in self.modules):
            return True
        if path[:-1] in self.modules and path[-1] in self.modules[path[:-1]]:
            return True
        return len(parts) > 1 and parts[-2] in self.members and parts[-1] in self.members[parts[-2]]


@pytest.mark.slow
def test_dotted_names_in_docstrings_and_pages_lead_to_something():
    names, texts = Names(), []
    for parts, tree in parsed():
        documented = [n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)]
        texts += [("/".join(parts), ast.get_docstring(node) or "") for node in documented]
    texts += [
        (page.name, page.read_text(encoding="utf-8")) for page in (*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md"))
    ]
    checked = [(where, name) for where, text in texts for name in DOTTED.findall(text) if not name.startswith(OTHERS)]
    checked = [(where, name) for where, name in checked if name.split(".")[-1] not in FILES]
    assert len(checked) > 300
    assert [f"{where}: {name}" for where, name in checked if not names.has(name)] == []
    for wrong in ("inference.filter_vmp", "sh.Nothing", "samplehold.models.bridge.none", "SwitchingSSM.nothing"):
        assert not names.has(wrong)
