"""What Triton's compiler makes of loops, and its interpreter does not show."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import samplehold

ROOT = Path(samplehold.__file__).parent
FILES = sorted(path for path in ROOT.glob("inference/**/*.py") if path.name.startswith(("cuda", "gpu")))


def copies(statement: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Names that are assigned other names as they are, and the lines."""
    if not isinstance(statement, ast.Assign):
        return
    for target in statement.targets:
        pairs = [(target, statement.value)]
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            pairs = list(zip(target.elts, statement.value.elts, strict=True))
        for left, right in pairs:
            if isinstance(left, ast.Name) and isinstance(right, ast.Name):
                yield left.id, right.id, statement.lineno


def assigned(loop: ast.AST) -> dict[str, int]:
    """The first line at which a loop assigns each name."""
    lines: dict[str, int] = {}
    for node in ast.walk(loop):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            lines[node.id] = min(node.lineno, lines.get(node.id, node.lineno))
    return lines


def before(function: ast.FunctionDef, loop: ast.AST) -> set[str]:
    """The names that a function assigns before a loop, not within another one."""
    inside = {id(node) for other in loops_of(function) if other.lineno < loop.lineno for node in ast.walk(other)}
    around = {id(node) for other in loops_of(function) if loop in ast.walk(other) for node in ast.walk(other)}
    names = {argument.arg for argument in function.args.args}
    for node in ast.walk(function):
        stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno < loop.lineno
        if stored and (id(node) not in inside or id(node) in around):
            names.add(node.id)
    return names


def loops_of(function: ast.FunctionDef) -> list[ast.For | ast.While]:
    """The loops of a kernel, but for those that are unrolled."""
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For | ast.While)]
    return [loop for loop in loops if "static_range" not in ast.unparse(loop).split("\n", 1)[0]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-2:]))
def test_no_variable_of_a_loop_keeps_another_one_from_before_its_step(path):
    """The compiler takes `last = t`, where both begin as one number, for no change of `last`."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        for loop in loops_of(function):
            lines, known = assigned(loop), before(function, loop)
            for name, other, line in (copy for node in ast.walk(loop) for copy in copies(node)):
                assert name not in known or lines.get(other, 0) <= line, f"{path}:{line}: {name} = {other}"
