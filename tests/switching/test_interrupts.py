"""Ctrl-C ends a fit of any kind with the best so far."""

import pytest
import samplehold as sh
import torch
from samplehold.inference.message_passing.engine import VMP
from samplehold.switching.fitting.progress import Progress
from torch.testing import assert_close


def interrupted_at(monkeypatch, method: str, call: int) -> None:
    """The progress bar of a method is told of a step, and somebody presses the keys."""
    calls, true_init = [], Progress.__init__

    def init(self, title, total, show):
        self.title = title
        true_init(self, title, total, show)

    def told(self, step, objective):
        calls.extend([step] * self.title.lower().startswith(method))
        if len(calls) == call:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "__init__", init)
    monkeypatch.setattr(Progress, "__call__", told)


def levels(n_steps: int = 60) -> torch.Tensor:
    truth = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).with_values(
        redraw_prob=0.1, state_probs=[0.5, 0.5], loc=[[0.0], [6.0]], scale=[[1.0], [1.0]]
    )
    return truth.simulate(n_steps, seed=0).x.double()


MODEL = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))


@pytest.mark.parametrize(("method", "call", "steps"), [("em", 2, 16), ("vmp", 2, 16), ("svi", 7, 7)])
def test_a_fit_keeps_its_steps(monkeypatch, method, call, steps):
    interrupted_at(monkeypatch, method, call)
    fit = MODEL.fit(levels(), method, restarts=4, tol=0.0, max_steps=50, progress=False)
    assert fit.interrupted
    assert not (fit.converged and method != "svi")
    assert len(fit.objective) == fit.steps == steps
    assert all(bool(value.isfinite().all()) for value in fit.model.values.values())


@pytest.mark.parametrize(("call", "shape"), [(10, (1, 5)), (20, (1, 10)), (28, (2, 8))])
def test_chains_keep_as_many_draws_as_make_a_rectangle(monkeypatch, call, shape):
    """Of each chain 5 steps of warm-up and 10 draws: told of every step after its draw was kept."""
    interrupted_at(monkeypatch, "nuts", call)
    fit = MODEL.fit(levels(), "nuts", restarts=2, max_steps=10, progress=False)
    assert fit.interrupted
    assert fit.posterior.draws["loc"].shape[:2] == shape
    assert len(fit.objective) == shape[0] * shape[1]


@pytest.mark.parametrize(("method", "call"), [("nuts", 2), ("svi", 1), ("vmp", 1)])
def test_before_the_first_draw_there_is_the_start(monkeypatch, method, call):
    if method == "svi":
        import pyro.infer

        monkeypatch.setattr(pyro.infer.SVI, "step", lambda self: (_ for _ in ()).throw(KeyboardInterrupt()))
    else:
        interrupted_at(monkeypatch, method, call)
    fit = MODEL.fit(levels(), "nuts" if method == "vmp" else method, restarts=2, max_steps=10, progress=False)
    assert fit.interrupted
    assert fit.method == "vmp"  # what it is: the fit from which the sampler would have gone on
    assert fit.posterior is not None


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_models_of_several_chains_keep_their_steps_too(monkeypatch, method):
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    zero = torch.zeros(2, 1, dtype=torch.float64)
    model = sh.FactorialSSM(half, [half, half], [zero, zero], torch.eye(1, dtype=torch.float64))
    interrupted_at(monkeypatch, method, 2)
    fit = model.fit(levels(), method, restarts=3, tol=0.0, max_steps=50, progress=False)
    assert fit.interrupted
    assert len(fit.objective) == 16
    assert float(fit.objective[-1]) >= fit.restarts.objective.max() - 1e-3


def test_a_run_is_cut_back_to_its_last_whole_sweep(monkeypatch):
    whole = MODEL.fit(levels(), "vmp", restarts=2, tol=0.0, max_steps=13, progress=False)
    true_update, calls = VMP.update, []

    def update(self, name, under=None):
        calls.append(name)
        if len(calls) == 1 + 4 * 13 + 2:  # one of the start, thirteen sweeps of four blocks, half of another
            raise KeyboardInterrupt
        return true_update(self, name, under)

    monkeypatch.setattr(VMP, "update", update)
    fit = MODEL.fit(levels(), "vmp", restarts=2, tol=0.0, max_steps=50, progress=False)
    assert fit.interrupted
    assert_close(fit.objective, whole.objective, rtol=1e-12, atol=0)
    assert_close(fit.model.loc, whole.model.loc, rtol=1e-9, atol=1e-9)
