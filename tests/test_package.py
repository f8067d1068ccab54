"""The package as it is shipped."""

import doctest
import importlib
import inspect
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest
import samplehold
from examples import slow
from oracles.prints import is_ours, reached, short

ROOT = Path(samplehold.__file__).parent
NOT_CODE = {"tests", "notebooks", "build", "dist", "docs"}
FLOORS = {"inference", "switching", "models", "cli", "face"}


def test_every_folder_of_code_is_in_the_wheel():
    """A folder left out of `packages` works in an editable install and is missing from the wheel."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {"samplehold"}
    for init in ROOT.rglob("__init__.py"):
        parts = init.parent.relative_to(ROOT).parts
        if parts and not parts[0].startswith(".") and parts[0] not in NOT_CODE:
            folders.add(".".join(("samplehold", *parts)))
    assert set(listed) == folders


ROOMS = [name for name in samplehold.__all__ if inspect.ismodule(getattr(samplehold, name))]
PUBLIC = {name: getattr(samplehold, name) for name in samplehold.__all__} | {
    f"{room}.{name}": getattr(getattr(samplehold, room), name)
    for room in ROOMS
    for name in dir(getattr(samplehold, room))
    if not (name.startswith("_") or inspect.ismodule(getattr(getattr(samplehold, room), name)))
}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring_with_an_example(name):
    assert ">>>" in (PUBLIC[name].__doc__ or "")


def test_every_public_name_stands_in_one_place():
    names = [name.split(".")[-1] for name in PUBLIC]
    assert len(names) == len(set(names))
    assert len(samplehold.__all__) <= 93


@pytest.mark.parametrize("name", [name for name, member in PUBLIC.items() if inspect.isclass(member)])
def test_every_public_method_has_a_docstring(name):
    for method, member in vars(PUBLIC[name]).items():
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if not method.startswith("_") and (inspect.isfunction(function) or isinstance(function, property)):
            assert inspect.getdoc(getattr(PUBLIC[name], method)), f"{name}.{method}"


MODULES = [module.name for module in pkgutil.walk_packages(samplehold.__path__, "samplehold.")]


OURS = ["samplehold", *(name for name in MODULES if name.split(".")[1] in FLOORS)]
FOR_GPUS = re.compile(r"\.(cuda|gpu)\w*$")  # need Triton
LONG = "switching.slds.gibbs", "models.studies.information", "models.studies.next_token", "switching.emissions.discrete"
LONG += "switching.deviations", "switching.estimator", "switching.linear.profile", "emissions.autoregression"
LONG += "emissions.counts", "emissions.positive", "emissions.proportions", "emissions.multivariate_normal"
LONG += "emissions.factor_analysis", "emissions.zero_inflated"


def source(name: str) -> str:
    path = ROOT.joinpath(*name.split(".")[1:])
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()


SHOWN = {f"{member.__module__}.{member.__qualname__}" for member in PUBLIC.values() if not inspect.ismodule(member)}
EXAMPLES = [name for name in OURS if ">>>" in source(name)]


@pytest.mark.parametrize("for_gpus", [False, slow(True)])
def test_every_module_is_imported(for_gpus):
    names = [name for name in OURS if bool(FOR_GPUS.search(name)) == for_gpus]
    assert len(names) > 15
    for name in names:
        assert importlib.import_module(name).__name__ == name


def test_every_text_with_examples_is_found():
    assert len(EXAMPLES) > 100


@pytest.mark.parametrize(
    "name", [slow(name) if name.endswith(LONG) or FOR_GPUS.search(name) else name for name in EXAMPLES]
)
def test_examples_in_docstrings_run_and_what_public_ones_make_is_short_in_print(name):
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(importlib.import_module(name)):
        before = set(example.globs)
        runner.run(example, clear_globs=False)
        made = [value for key, value in example.globs.items() if key not in before] if example.name in SHOWN else []
        for value in made:
            if is_ours(value) and not (inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value)):
                for what, part in reached(value).items():
                    assert short(part), f"{example.name}: {what}: {part!r}"
    assert runner.tries > 0
    assert runner.failures == 0


def test_hooks_have_the_version_of_the_style_that_is_pinned():
    revision = re.search(r"rev: v(\S+)", (ROOT / ".pre-commit-config.yaml").read_text()).group(1)
    assert f"ruff=={revision}" in (ROOT / "constraints.txt").read_text().splitlines()


def test_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [name for group in project["optional-dependencies"].values() for name in group]
    pinned = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    for requirement in wanted:
        name = requirement.split(">")[0].split("[")[0].lower()
        assert name in pinned | {"samplehold"}, name
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()


def test_inference_knows_no_pyro():
    """The order of floors and rooms is held by `.importlinter`; this is about a library."""
    for path in (ROOT / "inference").rglob("*.py"):
        assert not re.search(r"^\s*(import|from) pyro", path.read_text(), re.MULTILINE), path
