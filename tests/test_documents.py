"""Every Python block of the README and of the documents runs as it stands, in order."""

import ast
import importlib
import inspect
import re
from collections import Counter
from pathlib import Path

import matplotlib as mpl
import pytest
import samplehold
from examples import slow

ROOT = Path(samplehold.__file__).parent
BLOCK = re.compile(r"^```(?:python|\{code-cell\} python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [page for page in PAGES if "\n```python\n" in page.read_text()]  # others run in the site's build
BESIDE = {"dynamax.md": "dynamax"}  # pages whose blocks need a package that the extra of the tests has not


@pytest.mark.slow
@pytest.mark.parametrize("path", [README, *map(slow, DOCUMENTS)], ids=lambda path: str(path.relative_to(ROOT)))
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


def test_the_readme_and_the_answers_to_one_question_are_short():
    assert len(README.read_text().splitlines()) <= 120
    pages = sorted((ROOT / "docs" / "how_to").glob("*.md"))
    assert len(pages) > 10
    assert [page.name for page in pages if len(page.read_text().splitlines()) > 40 and page.stem != "index"] == []


def test_every_public_name_has_one_place_in_the_reference():
    listed = Counter(
        line.strip().removeprefix("samplehold.")
        for page in (ROOT / "docs" / "reference").glob("*.md")
        for line in page.read_text().splitlines()
        if line.startswith("   ") and not line.strip().startswith((":", "."))
    )
    names = {name for name in samplehold.__all__ if not inspect.ismodule(getattr(samplehold, name))}
    for room in set(samplehold.__all__) - names:
        members = {name: getattr(getattr(samplehold, room), name) for name in dir(getattr(samplehold, room))}
        names |= {f"{room}.{name}" for name, it in members.items() if name[0] != "_" and not inspect.ismodule(it)}
    assert listed == Counter(names)


def test_methods_of_users_come_first_on_the_page_of_a_model(monkeypatch):
    """And internals last, under a heading of their own; every name in these lists is a member of something."""
    addnodes, nodes = pytest.importorskip("sphinx.addnodes"), pytest.importorskip("docutils.nodes")
    monkeypatch.syspath_prepend(ROOT / "docs" / "_extensions")
    members = importlib.import_module("members")
    pages = (samplehold.SwitchingSSM, samplehold.Fit, samplehold.FactorialSSM, samplehold.LayeredSSM)
    known = {name for page in (*pages, samplehold.Segments) for name in dir(page)}
    assert {*members.FIRST, *members.INTERNAL} <= known
    assert not {*members.FIRST} & {*members.INTERNAL}

    def page(name, kind, *inside):
        content = addnodes.desc_content("", *(node for member in inside for node in (addnodes.index(), member)))
        return addnodes.desc("", addnodes.desc_signature(fullname=f"Model.{name}"), content, objtype=kind)

    model = page(
        "Model", "class", *(page(name, "method") for name in ("at_ends", "chain", "fit", "forecast", "smooth"))
    )
    members.arrange(None, nodes.section("", model))
    order = [node for node in model[-1] if not isinstance(node, addnodes.index)]
    shown = [node[0]["fullname"] if isinstance(node, addnodes.desc) else node.astext() for node in order]
    assert shown[:4] == ["Model.fit", "Model.smooth", "Model.forecast", "Model.chain"]
    assert shown[4].startswith("Internals")
    assert shown[5:] == ["Model.at_ends"]


def test_every_tutorial_is_listed():
    """By its only title, which is that of its page."""
    listed = (ROOT / "docs" / "tutorials" / "index.md").read_text()
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        (title,) = re.findall(r"^# # (.+)$", notebook.with_suffix(".py").read_text(), re.MULTILINE)
        assert f"[{title}]({notebook.name})" in listed
