"""What is loaded, and what is not, before the first answer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import samplehold

NILE = Path(samplehold.__file__).parent / "notebooks" / "data" / "nile.csv"
COMMAND = "from samplehold.cli.app import app; app({arguments!r}, standalone_mode=False)"
FIT = """
import samplehold as sh
model = sh.SwitchingSSM(sh.{dynamics}(2), sh.{emission}(1))
fit = model.fit([1.0, 2.0, 1.0, 7.0, 8.0, 9.0, 7.0, 1.0], method={method!r}, progress=False, restarts=2)
fit.model.smooth([1.0, 7.0, 8.0]), fit.model.forecast([1.0, 7.0, 8.0], 2).mean
"""


def loaded(code: str, folder: Path) -> set[str]:
    """The modules that a new process holds after it has run some code."""
    end = "import json, sys; json.dump(list(sys.modules), open('loaded.json', 'w'))"
    body = "\n".join("    " + line for line in code.strip().splitlines())
    script = f"try:\n{body}\nexcept BaseException as error:\n    print(repr(error))\nfinally:\n    {end}"
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.count("Exception") == done.stdout.count("Error") == 0, done.stdout
    return set(json.loads((folder / "loaded.json").read_text()))


@pytest.mark.parametrize(
    "code",
    [
        "import samplehold",
        COMMAND.format(arguments=["--help"]),
        COMMAND.format(arguments=["fit", "--help"]),
        COMMAND.format(arguments=["fit", "absent.csv", "--out", "out"]),
        COMMAND.format(arguments=["forecast", ".", "absent.csv"]),
        COMMAND.format(arguments=["sample", "absent"]),
    ],
)
def test_no_library_is_loaded_for_what_needs_none(code, tmp_path):
    heavy = {"torch", "torch._dynamo", "pyro", "numba", "pandas", "numpy", "scipy", "sklearn", "arviz", "matplotlib"}
    assert not heavy & loaded(code, tmp_path)


@pytest.mark.parametrize("method", ["em", "vmp"])
@pytest.mark.parametrize(("dynamics", "emission"), [("Copy", "Normal"), ("Markov", "MultivariateNormal")])
def test_a_fit_loads_neither_a_compiler_of_graphs_nor_figures(method, dynamics, emission, tmp_path):
    found = loaded(FIT.format(method=method, dynamics=dynamics, emission=emission), tmp_path)
    assert "numba" in found
    assert not {"torch._dynamo", "torch._inductor", "arviz", "xarray", "matplotlib"} & found


def test_a_model_loads_nothing_that_only_fits_need(tmp_path):
    code = "import samplehold as sh\nsh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).without_values()"
    found = loaded(code, tmp_path)
    assert "pyro" in found
    assert not {"sklearn", "scipy.optimize", "scipy.stats", "matplotlib", "arviz"} & found
