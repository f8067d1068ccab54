"""Ctrl-C ends a fit of any kind with the best so far."""

import contextlib
import importlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import samplehold as sh
import torch
from oracles.coupled import factorial_of
from oracles.effort import effort
from samplehold.inference.families import MarkovPaths
from samplehold.inference.message_passing import VMP
from samplehold.inference.numerics import interrupts
from samplehold.inference.numerics.interrupts import check_interrupt, importing, interruptible, may_interrupt
from samplehold.switching.ascent import Ascent
from samplehold.switching.fitting import EM, sampling, search, subject_starts
from samplehold.switching.fitting import fit as fits
from samplehold.switching.progress import Progress
from samplehold.switching.slds import starts as slds_starts
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("keys")


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


@pytest.mark.parametrize(("method", "call", "steps"), [("em", 2, 8), ("vmp", 2, 16), ("svi", 7, 7)])
def test_a_fit_keeps_its_steps(monkeypatch, method, call, steps):
    interrupted_at(monkeypatch, method, call)
    fit = MODEL.fit(levels(), method, restarts=4, tol=0.0, max_steps=50, progress=False)
    assert fit.interrupted
    assert not (fit.converged and method != "svi")
    assert len(fit.objective) == fit.steps == steps
    assert all(bool(value.isfinite().all()) for value in fit.model.values.values())


@pytest.mark.slow
@pytest.mark.parametrize(("call", "shape"), [(10, (1, 5)), (20, (1, 10)), (28, (2, 8))])
def test_chains_keep_as_many_draws_as_make_a_rectangle(monkeypatch, call, shape):
    """Of each chain 5 steps of warm-up and 10 draws: told of every step after its draw was kept."""
    interrupted_at(monkeypatch, "nuts", call)
    fit = MODEL.fit(levels(), "nuts", restarts=2, num_samples=10, progress=False)
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
    method = "nuts" if method == "vmp" else method
    fit = MODEL.fit(levels(), method, restarts=2, progress=False, **effort(method, 10))
    assert fit.interrupted
    assert fit.method == "vmp"  # what it is: the fit from which the sampler would have gone on
    assert fit.reason.endswith(f"before the first result of {method}; this is the fit by vmp where it starts")
    assert fit.posterior is not None


@pytest.mark.parametrize(
    "model", [sh.LinearSSM(sh.LocalLevel()), sh.Segments(sh.Normal(1), 0.1)], ids=["linear", "segments"]
)
def test_before_the_first_draw_other_models_have_the_mode_and_say_so(monkeypatch, model):
    interrupted_at(monkeypatch, "nuts", 2)
    fit = model.fit(levels(20), "nuts", restarts=2, progress=False, **effort("nuts", 10))
    assert (fit.method, fit.interrupted, fit.converged, fit.posterior) == ("em", True, False, None)
    assert "before the first result of nuts" in fit.reason


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_models_of_several_chains_keep_their_steps_too(monkeypatch, method):
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    zero = torch.zeros(2, 1, dtype=torch.float64)
    model = factorial_of(half, [half, half], [zero, zero], torch.eye(1, dtype=torch.float64))
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


# ---- at any moment -------------------------------------------------------------------------------------------------


def pressed_before(monkeypatch, room, name: str, times: int = 1) -> None:
    """Somebody presses the keys when this function of a module is called."""
    true = getattr(room, name)

    def called(*arguments, **keywords):
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return true(*arguments, **keywords)

    monkeypatch.setattr(room, name, called)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "room", "name"),
    [
        ("em", fits, "reordered"),
        ("vmp", fits, "renumbered"),
        ("svi", sampling, "settled"),
        ("nuts", sampling, "_apart"),
        ("svi", fits, "result_of"),
    ],
)
def test_a_press_while_the_result_is_put_together_loses_nothing(monkeypatch, method, room, name):
    pressed_before(monkeypatch, room, name)
    fit = MODEL.fit(levels(), method, restarts=2, progress=False, **effort(method, 3 if method == "nuts" else 20))
    assert all(bool(value.isfinite().all()) for value in fit.model.values.values())
    if (method, name) == ("svi", "result_of"):  # the start from which it would have gone on
        assert (fit.method, fit.interrupted) == ("vmp", True)
    else:
        assert (fit.method, fit.interrupted) == (method, False)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_who_presses_twice_means_it(monkeypatch):
    pressed_before(monkeypatch, fits, "reordered", times=2)
    with pytest.raises(KeyboardInterrupt):
        MODEL.fit(levels(), "em", restarts=2, max_steps=20, progress=False)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_before_the_first_step_there_is_nothing_to_keep(monkeypatch):
    pressed_before(monkeypatch, search, "first_guesses")
    with pytest.raises(KeyboardInterrupt):
        MODEL.fit(levels(), "em", restarts=2, progress=False)


def test_a_press_between_two_rounds_keeps_the_first(monkeypatch):
    pressed_before(monkeypatch, search, "perturbed")
    fit = MODEL.fit(levels(), "em", restarts=2, progress=False)
    assert fit.interrupted
    assert bool(fit.restarts.independent.all())


@pytest.mark.parametrize("presses", [1, 2])
def test_an_import_is_never_broken_off(tmp_path, monkeypatch, presses):
    name = f"interrupted_{presses}"
    press = "import signal\n" + "signal.raise_signal(signal.SIGINT)\n" * presses
    (tmp_path / f"{name}.py").write_text(press + "complete = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(interrupts, "AGAIN", 60.0)
    modules = []

    def step():
        modules.append(importlib.import_module(name))
        with pytest.raises(KeyboardInterrupt):
            check_interrupt()

    with interruptible(), pytest.raises(KeyboardInterrupt), may_interrupt():
        step()
    assert modules[0].complete


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("presses", [1, 2])
def test_imports_outside_a_fit_are_not_broken_off_either(tmp_path, monkeypatch, presses, fails):
    name = f"imported_{presses}_{fails}"
    press = "import signal\n" + "signal.raise_signal(signal.SIGINT)\n" * presses
    (tmp_path / f"{name}.py").write_text(press + ("import no_such_module\n" if fails else "complete = True\n"))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt), importing(), importing():
        importlib.import_module(name)
    assert fails or sys.modules[name].complete
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_press_at_a_first_name_comes_after_its_import(monkeypatch):
    loaded = []

    def load(name: str) -> str:
        signal.raise_signal(signal.SIGINT)
        loaded.append(name)
        return name

    monkeypatch.setattr(sh, "_load", load)
    with pytest.raises(KeyboardInterrupt):
        sh.__getattr__("SwitchingSSM")
    assert loaded == ["SwitchingSSM"]


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torch.", "pyro.infer", "pandas._libs"])
def test_a_press_at_the_first_name_leaves_the_process_whole(library):
    done = subprocess.run([sys.executable, "-c", NAMED % library], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["pressed", "True"], done.stderr


NAMED = """
import builtins, signal
import samplehold as sh
true, names = builtins.__import__, []

def load(name, *rest, **named):
    if name.startswith("%s") and not names:
        names.append(name)
        signal.raise_signal(signal.SIGINT)
    return true(name, *rest, **named)

builtins.__import__ = load
try:
    sh.SwitchingSSM
except KeyboardInterrupt:
    print("pressed" if names else "elsewhere")
builtins.__import__ = true
x = [1.0, 1.1, 0.9, 4.0, 4.1, 3.9]
print(sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(x, restarts=1, progress=False).converged)
"""


def test_a_press_during_an_import_is_heard_soon_after_it(tmp_path, monkeypatch):
    (tmp_path / "interrupted_early.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with interruptible():
        importlib.import_module("interrupted_early")
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(60)
        assert time.monotonic() - begun < 30


@pytest.mark.parametrize("n_before", [0, 1, 2])
def test_a_structure_keeps_its_first_steps(monkeypatch, n_before):
    """And where none is finished yet, one start alone takes one."""
    calls, true = [], Ascent._step

    def step(self):
        calls.append(len(self.point))
        if len(calls) == n_before + 1:
            signal.raise_signal(signal.SIGINT)
        return true(self)

    monkeypatch.setattr(Ascent, "_step", step)
    fit = sh.LinearSSM(sh.LocalLevel()).fit(levels(), restarts=3, progress=False)
    assert fit.interrupted
    assert len(fit.objective) == max(1, n_before)
    assert calls == [3] * (n_before + 1) + [1] * (n_before == 0)
    assert all(bool(value.isfinite().all()) for value in fit.model.values.values())


@pytest.mark.parametrize(("method", "room"), [("em", EM), ("vmp", VMP)])
def test_where_no_step_is_finished_one_start_alone_takes_one(monkeypatch, method, room):
    calls, true = [], room.run

    def run(self, *arguments, **keywords):
        calls.append(self)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        return true(self, *arguments, **keywords)

    monkeypatch.setattr(room, "run", run)
    fit = MODEL.fit(levels(), method, restarts=4, progress=False)
    assert fit.interrupted
    assert len(fit.objective) == 1
    assert all(bool(value.isfinite().all()) for value in fit.model.values.values())


# ---- after a press ---------------------------------------------------------------------------------------------------


def passes_after(monkeypatch, room, name: str, press_at: int, fit) -> tuple[Any, list[int]]:
    """A fit during whose pass with this number, counted from 1, somebody presses the keys; and the numbers of restarts
    of all later passes."""
    seen, true = [], getattr(room, name)

    def one(self, tables, *rest):
        seen.append(len(tables.steps[0] if isinstance(tables, tuple) else next(iter(tables.values()))))
        if len(seen) == press_at:
            signal.raise_signal(signal.SIGINT)
        return true(self, tables, *rest)

    monkeypatch.setattr(room, name, one)
    fitted = fit()
    assert len(seen) >= press_at
    return fitted, seen[press_at:]


@pytest.mark.parametrize(("press_at", "after"), [(1, [1, 1]), (2, [1]), (3, []), (12, []), (30, [])])
def test_after_a_press_message_passing_computes_no_path_twice(monkeypatch, press_at, after):
    """While no step is finished, the paths at the start and those after one step are those of one start alone."""
    model = sh.SwitchingSSM(sh.StickyHDP(5), sh.Normal(1))
    fit, later = passes_after(
        monkeypatch, MarkovPaths, "evaluate", press_at, lambda: model.fit(levels(), "vmp", restarts=4, progress=False)
    )
    assert fit.interrupted
    assert later == after


@pytest.mark.parametrize("dynamics", [sh.SemiMarkov(2, max_duration=20), sh.Markov(2)], ids=lambda d: d.name)
@pytest.mark.parametrize(("press_at", "after"), [(1, [1, 1]), (2, [1]), (3, []), (6, [])])
def test_after_a_press_em_makes_no_expectation_twice(monkeypatch, dynamics, press_at, after):
    model = sh.SwitchingSSM(dynamics, sh.Normal(1))
    fit, later = passes_after(
        monkeypatch, EM, "_expected", press_at, lambda: model.fit(levels(), "em", restarts=2, progress=False)
    )
    assert fit.interrupted
    assert later == after


def test_states_of_an_interrupted_fit_are_those_of_its_values(monkeypatch):
    """The expected steps in the states, which come from the last step, are those of the best tables."""
    interrupted_at(monkeypatch, "vmp", 2)
    fit = sh.SwitchingSSM(sh.StickyHDP(5), sh.Normal(1)).fit(levels(), "vmp", restarts=4, tol=0.0, progress=False)
    used = fit.posterior.smooth(fit.series).state.reshape(-1, 5).sum(0)
    assert fit.empty_states.tolist() == (used < 1).tolist()


@pytest.mark.parametrize(("pooled", "method"), [("none", "em"), ("partial", "vmp")])
def test_a_press_ends_all_fits_of_a_fit_by_subject(monkeypatch, pooled, method):
    parts = list(levels(120).split(30))
    interrupted_at(monkeypatch, method, 1)
    alone = len(MODEL.fit(parts, method, restarts=2, progress=False).objective)
    monkeypatch.undo()
    interrupted_at(monkeypatch, method, 1)
    fit = MODEL.fit(parts, method, restarts=2, subjects=[0, 0, 1, 1], pooled=pooled, progress=False)
    assert fit.interrupted
    assert len(fit.objective) == 1 <= alone


def test_a_press_before_fits_of_single_subjects_ends_with_the_common_fit(monkeypatch):
    pressed_before(monkeypatch, subject_starts, "_guessed")
    fit = MODEL.fit(list(levels(120).split(30)), restarts=2, subjects=[0, 0, 1, 1], pooled="none", progress=False)
    assert fit.interrupted
    assert len(fit.objective) == 1


def test_after_an_interrupted_loop_each_later_one_ends_at_once():
    steps = []
    with interruptible():
        for _ in range(3):
            with contextlib.suppress(KeyboardInterrupt), may_interrupt():
                steps.append(1)
                signal.raise_signal(signal.SIGINT)
    assert len(steps) == 1
    with interruptible(), may_interrupt():  # the next fit
        steps.append(2)
    assert len(steps) == 2


def test_a_switching_linear_model_keeps_one_start(monkeypatch):
    pressed_before(monkeypatch, slds_starts, "annealed")
    fit = sh.SwitchingLinearSSM(2, 1).fit(levels(), restarts=3, progress=False)
    assert fit.interrupted
    assert len(fit.restarts) == 1
    assert all(bool(value.isfinite().all()) for value in fit.model.values.values())


def pressed_at_fit(monkeypatch, number: int, within: bool) -> list[int]:
    """Somebody presses the keys in the step after so many fits; within: while a fit runs, or else after it."""
    fits_so_far, true = [], type(MODEL).fit

    def fit(self, *arguments, **keywords):
        fits_so_far.append(len(fits_so_far))
        here = len(fits_so_far) == number
        if here and within:
            interrupted_at(monkeypatch, "em", 1)
        found = true(self, *arguments, **keywords)
        if here and not within:
            signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(type(MODEL), "fit", fit)
    return fits_so_far


SMALL = {"restarts": 1, "max_steps": 5}


def chosen(**options) -> Any:
    return sh.select(lambda k: sh.SwitchingSSM(sh.Copy(k), sh.Normal(1)), levels(24), (1, 2, 3), **SMALL, **options)


def walked(**options) -> Any:
    return sh.backtest(MODEL, levels(24), refit_every=4, horizon=1, first=12, **SMALL, **options)


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize(("criterion", "fits"), [("bic", 1), ("heldout", 4)])
def test_a_selection_keeps_the_candidates_that_are_complete(monkeypatch, criterion, fits, within):
    whole = chosen(criterion=criterion, folds=3)
    assert not whole.interrupted
    before = pressed_at_fit(monkeypatch, fits + 1, within)
    some = chosen(criterion=criterion, folds=3)
    assert (some.interrupted, some.candidates, len(some.fits), len(before)) == (True, (1,), 1, fits + 1)
    assert some.table.equals(whole.table[:1])
    assert "interrupted before the next candidate" in repr(some)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.few(1)
@pytest.mark.parametrize("within", [True, False])
def test_a_backtest_keeps_the_origins_of_the_fits_that_are_complete(monkeypatch, within):
    whole = walked()
    pressed_at_fit(monkeypatch, 3, within)
    some = walked()
    assert (some.interrupted, whole.interrupted, len(some.fits)) == (True, False, 2)
    assert some.forecasts.equals(whole.forecasts[:8])
    assert some.states.equals(whole.states[:8])
    assert "8 origins and 2 fits, interrupted" in repr(some)


@pytest.mark.parametrize("call", [chosen, walked])
def test_before_the_first_fit_is_complete_there_is_nothing_to_keep_of_several(monkeypatch, call):
    pressed_at_fit(monkeypatch, 1, True)
    with pytest.raises(KeyboardInterrupt):
        call()


@pytest.mark.parametrize("call", [chosen, walked])
def test_interrupted_calls_of_several_fits_go_on_from_their_checkpoints(monkeypatch, tmp_path, call):
    whole = call()
    with monkeypatch.context() as patch:
        pressed_at_fit(patch, 2, True)
        assert call(checkpoint=tmp_path / "fits").interrupted
    steps, true = [], EM.run
    monkeypatch.setattr(EM, "run", lambda self, *given: steps.append(self) or true(self, *given))
    again = call(checkpoint=tmp_path / "fits")
    n_again = len(steps)
    call()
    assert n_again < len(steps) - n_again
    assert all(torch.equal(a.model.loc, b.model.loc) for a, b in zip(again.fits, whole.fits, strict=True))


def test_checkpoints_of_several_fits_need_a_folder(tmp_path):
    (tmp_path / "file").write_text("here")
    for path in (tmp_path / "file", tmp_path / "absent" / "folder"):
        with pytest.raises(ValueError, match=r"checkpoint: .* is no folder .* give the path of a folder"):
            chosen(checkpoint=path)


DEVIATIONS = sh.DeviationAR(2, 1)


@pytest.mark.few(1)
@pytest.mark.parametrize("n_before", [45, 7, 0])
def test_an_autoregression_in_deviations_keeps_its_steps(monkeypatch, tmp_path, n_before):
    """And goes on from its checkpoint."""
    x, options = levels(16), {"restarts": 1, "max_steps": 60}
    whole, calls, true = DEVIATIONS.fit(x, **options), [], Ascent._step

    def step(self):
        calls.append(len(self.point))
        if len(calls) == n_before + 1:
            signal.raise_signal(signal.SIGINT)
        return true(self)

    with monkeypatch.context() as patch:
        patch.setattr(Ascent, "_step", step)
        fit = DEVIATIONS.fit(x, **options, checkpoint=tmp_path / "fit", every=0)
    assert fit.interrupted
    assert len(calls) == n_before + 1
    assert fit.log_evidence <= whole.log_evidence + 1e-9
    again = DEVIATIONS.fit(x, **options, checkpoint=tmp_path / "fit")
    assert not again.interrupted
    assert torch.equal(again.heights, whole.heights)
    with pytest.raises(ValueError, match=r"checkpoint: .* is of another fit, which differs in model"):
        sh.DeviationAR(2, 1, switching=["scale"]).fit(x, **options, checkpoint=tmp_path / "fit")


@pytest.mark.slow
def test_a_press_during_the_first_fit_leaves_the_process_whole():
    done = subprocess.run([sys.executable, "-c", PRESSED], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["pressed", "True"], done.stderr


PRESSED = """
import builtins, signal
import torch
import samplehold as sh
sh.SwitchingSSM, sh.Markov, sh.MultivariateNormal
x, true, names = torch.randn(30).double(), builtins.__import__, []

def load(name, *rest, **named):
    if name.startswith("sympy") and not names:
        names.append(name)
        signal.raise_signal(signal.SIGINT)
    return true(name, *rest, **named)

builtins.__import__ = load
model = sh.SwitchingSSM(sh.Markov(2), sh.MultivariateNormal(1))
try:
    model.fit(x, progress=False)
except KeyboardInterrupt:
    pass
builtins.__import__ = true
print("pressed" if names else "not loaded")
print(model.fit(x, progress=False).converged)
"""


def press_after_a_block():
    with may_interrupt():
        pass
    signal.raise_signal(signal.SIGINT)


def test_blocks_within_each_other_stay_open():
    with interruptible():
        with pytest.raises(KeyboardInterrupt), may_interrupt():
            press_after_a_block()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), may_interrupt():
            pytest.fail("a press that waits breaks in at once")


@pytest.mark.hardware("a stand-in stands in one thread")
def test_a_thread_is_never_interrupted():
    found = []
    thread = threading.Thread(
        target=lambda: found.append(MODEL.fit(levels(), "em", restarts=2, max_steps=20, progress=False))
    )
    thread.start()
    thread.join()
    assert not found[0].interrupted


@pytest.mark.few(4)
@pytest.mark.parametrize("method", ["em", "vmp", "svi"])
@pytest.mark.parametrize("wait", [0.02, 0.1, 0.3])
def test_a_press_at_any_time(method, wait):
    """What comes back is whole: either an interrupt before the first step, or a fit whose numbers belong together."""
    x = levels(400)
    timer = threading.Timer(wait, signal.raise_signal, [signal.SIGINT])
    timer.start()
    try:
        fit = MODEL.fit(x, method, restarts=4, tol=0.0, max_steps=5000, progress=False)
        timer.join()  # which raises where the fit was the faster
    except KeyboardInterrupt:
        return
    assert fit.interrupted or method != "svi"  # which never settles by itself
    if fit.method == "em":
        problem = fit.model.problem(x)
        assert_close(problem.objective(fit.model.values), fit.objective[-1], rtol=1e-12, atol=0)


def test_a_press_that_is_lost_before_the_first_step_is_heard_at_it():
    with interruptible():
        with contextlib.suppress(KeyboardInterrupt):  # as a finaliser does
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), may_interrupt():
            raise AssertionError("the press was lost")


def test_a_press_that_is_lost_in_a_finaliser_is_heard_at_the_next_step(monkeypatch):
    true = Progress.__call__

    def told(self, step, objective):
        if step == 5:
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        return true(self, step, objective)

    monkeypatch.setattr(Progress, "__call__", told)
    fit = MODEL.fit(levels(), "svi", restarts=1, max_steps=50, progress=False)
    assert (fit.interrupted, fit.steps) == (True, 5)


def test_a_press_that_is_lost_in_the_last_step_is_heard_at_the_end():
    with interruptible():
        with pytest.raises(KeyboardInterrupt), may_interrupt(), contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with may_interrupt(anyway=True):
            pass  # the press is spent
        with pytest.raises(KeyboardInterrupt), may_interrupt():  # another fit of the same call
            pass
