"""The options `--device` and `--dtype`, and the device that is not there."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import joined
import numpy as np
import pytest
import samplehold as sh
import study
import torch
from oracles.fake_gpu import FakeTensor, fake_gpu, waits
from oracles.placement import placed, tolerances
from torch import Tensor
from torch.testing import assert_close


def test_tensors_of_tests_lie_where_the_option_says(device, dtype):
    x = torch.randn(3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    assert x.device.type == device.type
    assert_close(x + x, 2 * x, **tolerances(dtype))


@pytest.mark.cpu("it sets up a device of its own")
def test_on_another_device_what_tests_make_lies_there_and_what_the_library_makes_where_it_puts_it():
    with placed("fake") as there:
        x, seeded = torch.zeros(2, 5, 3), torch.randn(2, generator=torch.Generator().manual_seed(0))
        weights = torch.zeros(3, requires_grad=True)
        assert x.device == seeded.device == weights.device == there
        assert weights.is_leaf
        assert x.mean().numpy() == 0
        assert torch.from_numpy(np.ones(2)).device == there
        assert torch.equal(weights, torch.zeros(3, device="cpu"))
        assert torch.zeros(1, device="cpu").device.type == "cpu"
        drawn = sh.chains.CopyChain(None, x, x).sample(2, torch.Generator().manual_seed(0))
        assert drawn.path.device == there
        layer = sh.MinGRU(3, 4)
        assert {parameter.device for parameter in layer.parameters()} == {there}
        out, _ = layer(x)
        out.sum().backward()
        assert all(parameter.grad.device == there for parameter in layer.parameters())
        torch.testing.assert_close(out.cpu(), out)
    assert torch.zeros(1).device.type == "cpu"


@pytest.mark.cpu("it sets up a device of its own")
def test_a_device_that_is_not_there_refuses_what_a_gpu_refuses_and_counts_what_waits_for_it():
    with fake_gpu() as there:
        x, other = torch.arange(3.0, device=there), torch.arange(3.0)
        assert isinstance(x.exp(), FakeTensor)
        with pytest.raises(RuntimeError, match="same device"):
            x + other
        with pytest.raises(RuntimeError, match="same device"):
            other[x.long()]
        with pytest.raises(TypeError, match="numpy"):
            x.numpy()
        assert (x @ torch.eye(3, device=there) @ torch.eye(3, device=there)).shape == (3,)
        with pytest.raises(RuntimeError, match="for generator"):
            torch.randn(2, device=there, generator=torch.Generator())
        with waits() as none:
            (x * 2 + 1).cumsum(0).where(x > 1, 0.0)
            x[1:] = 4.0
            torch.linalg.cholesky_ex(torch.eye(2, device=there))
        assert none == []
        for look in (
            lambda: float(x[0]),
            lambda: x.tolist(),
            lambda: bool(x.any()),
            lambda: x.cpu(),
            lambda: other.to(there),
            lambda: torch.tensor([1.0], device=there),
            lambda: x[x > 1],
            lambda: x[torch.tensor([0, 1])],
            lambda: x.nonzero(),
            lambda: x.__setitem__(0, 4.0),
            lambda: torch.tensor(4.0, device=there),
            lambda: torch.linalg.cholesky(torch.eye(2, device=there)),
        ):
            with waits() as found:
                look()
            assert len(found) == 1, found


def _on_the_host() -> dict[str, Callable[[], Tensor]]:
    """What tensors of the host are put through, each with a number that tells whether it came out the same."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(60, 2)) + 4 * np.repeat(rng.integers(2, size=6), 10)[:, None])
    gaps, level = x.clone(), x[:, :1]
    gaps[5, 0] = torch.nan
    few = {"max_steps": 4, "progress": False}
    draw = torch.Generator(device="cpu").manual_seed(1)
    table = torch.randn(2, 9, 3, generator=draw, dtype=torch.float64, device="cpu")
    square = torch.randn(3, 3, generator=draw, dtype=torch.float64, device="cpu")
    network = sh.MinGRU(4, 3).double()
    markov = lambda: sh.SwitchingSSM(sh.Markov(2), sh.MultivariateNormal(2))
    copy = lambda: sh.SwitchingSSM(sh.Copy(2), sh.Gated(sh.Normal(2), sh.Normal(2)))
    lifted = lambda: sh.as_ssm(network, torch.full((4,), 0.25, dtype=torch.float64, device="cpu"))
    return {
        "chain": lambda: sh.chains.MarkovChain(table[0, 0], square, table).smooth().state,
        "draws": lambda: sh.chains.CopyChain(None, table, table).sample(3, seed=0).path,
        "scan": lambda: sh.linear_scan(table, table),
        "em": lambda: markov().fit(gaps, **few).log_evidence(),
        "gated": lambda: copy().fit(x, **few).log_evidence(),
        "vmp": lambda: markov().fit([x[:20], x[20:]], "vmp", **few).log_evidence(),
        "svi": lambda: markov().fit(x, "svi", restarts=1, **few).log_evidence(),
        "level": lambda: sh.LinearSSM(sh.LocalLevel()).fit(level, restarts=2, **few).log_evidence(),
        "latents": lambda: sh.LinearSSM(2, 2).fit(x, restarts=2, **few).log_evidence(),
        "forecast": lambda: markov().fit(x, **few).model.forecast(x, 3).mean,
        "simulated": lambda: markov().fit(x, **few).model.simulate(5, seed=0).x,
        "next token": lambda: sh.studies.price_of_exactness([0.2], [0.5], n_units=2, n_steps=1, n_sequences=1).network,
        "lifted": lambda: lifted().hidden(torch.arange(4, device="cpu")),
    }


@pytest.mark.slow
@pytest.mark.cpu("it sets up a device of its own")
@pytest.mark.parametrize("name", _on_the_host())
def test_the_device_that_torch_makes_tensors_on_moves_nothing_of_the_host(name):
    run = _on_the_host()[name]
    expected = run()
    with fake_gpu() as there, torch.device(there):
        found = run()
    assert found.device.type == "cpu"
    assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.cpu("it sets up a device of its own")
def test_a_study_runs_on_the_host_wherever_torch_makes_tensors(monkeypatch):
    monkeypatch.setattr(joined, "SIZES", ((2, 3),))
    monkeypatch.setattr(joined, "STEPS", 2)
    with fake_gpu() as there, torch.device(there):
        found = study.study("joined").tables["joined"]
    assert found["network"].tolist() == ["LSTM", "Elman"]


MAKERS = {"arange", "empty", "eye", "full", "linspace", "normal", "ones", "rand", "randint", "randn", "randperm"}
MAKERS |= {"tensor", "zeros"}
EXEMPT = re.compile(r"/(cuda\w*|native\w*)\.py$")  # kernels of operators, which torch's default does not reach


def test_what_the_library_makes_has_a_place():
    root, homeless = Path(sh.__file__).parent, []
    files = [path for room in ("inference", "switching", "models", "cli") for path in (root / room).rglob("*.py")]
    assert len(files) > 300
    made = re.compile(rf"\btorch\.({'|'.join(MAKERS)})\b")
    for path in files:
        if EXEMPT.search(path.as_posix()):
            continue
        text = path.read_text()
        if not made.search(text):
            continue
        nodes = list(ast.walk(ast.parse(text)))
        moved = {id(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr == "to"}
        for node in nodes:
            if isinstance(node, ast.Call) and getattr(node.func, "attr", None) in MAKERS:
                if ast.unparse(node.func.value) != "torch":
                    continue
                told = {keyword.arg for keyword in node.keywords}
                if not told & {"device", None} and (id(node) not in moved or "generator" in told):
                    homeless.append(f"{path.relative_to(root)}:{node.lineno}: {ast.unparse(node)}")
    assert homeless == []
