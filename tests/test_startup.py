"""What is loaded, and what is not, before the first answer."""

import json
import os
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
    heavy = {"torch", "torch._dynamo", "triton", "pyro", "pandas", "numpy", "scipy", "sklearn", "arviz"}
    assert not {*heavy, "matplotlib", "narwhals"} & loaded(code, tmp_path)


FITS = [("Copy", "Normal", "em"), ("Markov", "MultivariateNormal", "vmp")]


@pytest.mark.slow
@pytest.mark.parametrize(("dynamics", "emission", "method"), FITS)
def test_a_fit_loads_neither_a_compiler_of_graphs_nor_figures(method, dynamics, emission, tmp_path):
    found = loaded(FIT.format(method=method, dynamics=dynamics, emission=emission), tmp_path)
    assert not {"torch._dynamo", "torch._inductor", "triton", "arviz", "xarray", "matplotlib"} & found


@pytest.mark.few(1)
@pytest.mark.parametrize(("dynamics", "emission", "method"), FITS)
def test_a_small_fit_loads_no_other_library(method, dynamics, emission, tmp_path):
    found = loaded(FIT.format(method=method, dynamics=dynamics, emission=emission), tmp_path)
    assert not {"sklearn", "narwhals", "polars"} & found


LINEAR = """
import samplehold as sh
sh.{model}.fit([1.0, 2.0, 1.5, 3.0, 2.0, 5.0], restarts=1, max_steps=9, progress=False)
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["LinearSSM(2, 1)", "LinearSSM(sh.LocalLevel())", "SwitchingLinearSSM(2, 1)"])
def test_fits_of_linear_models_load_no_compiler(model, tmp_path):
    assert not {"torch._dynamo", "sympy", "arviz", "matplotlib"} & loaded(LINEAR.format(model=model), tmp_path)


@pytest.mark.slow
def test_an_interval_loads_no_figures(tmp_path):
    code = """
import samplehold as sh
fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit([1.0, 2.0, 7.0, 8.0, 7.0, 1.0], "vmp", restarts=1, progress=False)
fit.posterior.interval(0.9)
"""
    assert not {"torch._dynamo", "arviz", "matplotlib"} & loaded(code, tmp_path)


@pytest.mark.parametrize("text", ["x\n1\nabc\n3\n4\n", "year,x\n2000,1\n2000,2\n"])
def test_a_mistake_in_a_table_is_told_before_torch_is_loaded(text, tmp_path):
    (tmp_path / "data.csv").write_text(text)
    found = loaded(COMMAND.format(arguments=["fit", "data.csv", "-c", "x", "--out", "out"]), tmp_path)
    assert "pandas" in found
    assert not {"torch", "pyro", "sklearn"} & found


def test_a_model_loads_nothing_that_only_fits_need(tmp_path):
    code = "import samplehold as sh\nsh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).without_values()"
    found = loaded(code, tmp_path)
    assert "pyro" in found
    assert not {"sklearn", "scipy.optimize", "scipy.stats", "matplotlib", "arviz"} & found


WITHOUT_KERNELS = """
import torch, samplehold as sh
x = [1.0, 2.0, 1.0, 7.0, 8.0, 9.0, 7.0, 1.0]
for dynamics in (sh.Copy, sh.Markov):
    for method, emission in (("em", sh.Normal(1)), ("vmp", sh.MultivariateNormal(1))):
        model = sh.SwitchingSSM(dynamics(2), emission)
        fit = model.fit(x, method=method, progress=False, restarts=1, max_steps=3)
        fit.viterbi(), fit.model.sample_posterior(x, 2, seed=0), fit.forecast(horizon=2).mean
sh.MinGRU(2, 3)(torch.zeros(1, 4, 2))[0].sum().backward()
sh.stacks.SuperpositionStackRNN(2, 3)(torch.zeros(1, 4, 2))
print("%.9f" % fit.loglik)
"""


@pytest.mark.slow
def test_all_works_by_plain_forms(tmp_path):
    found = []
    for form in ("plain", "native"):
        environment = os.environ | {"SAMPLEHOLD_KERNELS": form}
        script = [sys.executable, "-W", "error::RuntimeWarning", "-c", WITHOUT_KERNELS]
        done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        found.append(float(done.stdout))
    assert found[0] == pytest.approx(found[1], rel=1e-8)


DISTURBED = """
import json, logging, os, random, signal, sys, warnings
import numpy as np, torch

def state():
    return {
        "random": random.getstate(), "numpy": str(np.random.get_state()), "torch": torch.get_rng_state().tolist(),
        "dtype": str(torch.get_default_dtype()), "threads": torch.get_num_threads(), "errors": np.geterr(),
        "handlers": [str(handler) for handler in logging.root.handlers], "level": logging.root.level,
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)],
        "hooks": [sys.excepthook.__name__, sys.displayhook.__name__, warnings.showwarning.__module__],
        "grad": torch.is_grad_enabled(),
    }

before, filters, environment = state(), list(warnings.filters), dict(os.environ)
import samplehold as sh
x = [1.0, 2.0, 1.0, 7.0, 8.0, 9.0, 7.0, 1.0]
for method in ("em", "vmp", "svi"):
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(x, method=method, progress=False, restarts=1, max_steps=3)
fit.summary(), fit.to_arviz(), fit.plot()
after = state()
changed = {name for name, value in before.items() if after[name] != value}
added = {name for name in os.environ if os.environ[name] != environment.get(name)}
lost = [entry for entry in filters if entry not in warnings.filters]
print(json.dumps([sorted(changed), sorted(added), [name for name in environment if name not in os.environ], len(lost)]))
"""


@pytest.mark.slow
def test_the_process_is_left_as_it_was_but_for_what_is_said_in_seeding(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KMP_")}
    script = [sys.executable, "-c", DISTURBED]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=True, env=environment)
    changed, added, removed, lost = json.loads(done.stdout.splitlines()[-1])
    assert (changed, removed, lost) == ([], [], 0)
    assert {name for name in added if not name.startswith("TORCHINDUCTOR")} <= {
        "KMP_DUPLICATE_LIB_OK",
        "KMP_INIT_AT_FORK",
    }
