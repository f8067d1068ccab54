"""Data that a fit takes, but that hardly have the form that the user thinks of, are pointed out."""

import warnings

import numpy as np
import pandas as pd
import pytest
import samplehold as sh

RNG = np.random.default_rng(0)
QUICK = {"restarts": 1, "max_steps": 2, "progress": False}
NILE = pd.read_csv("notebooks/data/nile.csv", index_col="year")["volume"]


@pytest.mark.parametrize(
    "model",
    [sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)), sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)), sh.LinearSSM(1, 1)],
    ids=["markov", "copy", "linear"],
)
@pytest.mark.parametrize("form", [lambda x: x[:, None, None], lambda x: [*x[:, None]]], ids=["table", "list"])
def test_sequences_of_one_step_are_pointed_out(model, form):
    with pytest.warns(UserWarning, match=r"x: got 40 sequences of one step each.*give x of shape \(40, 1\)"):
        model.fit(form(RNG.normal(size=40)), **QUICK)


def test_one_state_or_one_sequence_or_longer_ones_are_no_doubt():
    x = RNG.normal(size=40)
    two = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sh.SwitchingSSM(sh.Markov(1), sh.Normal(1)).fit(x[:, None, None], **QUICK)
        two.fit(x[:, None], **QUICK)
        two.fit([x[:39], x[39:]], **QUICK)


def test_volumes_are_no_poisson_counts():
    said = "x: volume has numbers up to 1370, whose variance from step to step is .* the variance of Poisson counts"
    with pytest.warns(UserWarning, match=said):
        sh.SwitchingSSM(sh.Markov(2), sh.Poisson(1)).fit(NILE, **QUICK)
    joint = sh.Joint(level=sh.Normal(1), volume=sh.Poisson(1))
    with pytest.warns(UserWarning, match=said):
        sh.SwitchingSSM(sh.Markov(2), joint).fit(pd.DataFrame({"level": NILE / 100, "volume": NILE}), **QUICK)


@pytest.mark.parametrize("rates", [[1500.0, 1500.0], [900.0, 3000.0], [2.0, 40.0]])
def test_counts_of_any_size_are_no_doubt(rates):
    state = np.repeat([0, 1, 0, 1], 25)
    x = RNG.poisson(np.array(rates)[state])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sh.SwitchingSSM(sh.Markov(2), sh.Poisson(1)).fit(x, **QUICK)
        sh.SwitchingSSM(sh.Markov(2), sh.NegativeBinomial(1)).fit(NILE.astype(int), **QUICK)


def test_subjects_without_pooling_are_pointed_out():
    x, model = [RNG.normal(size=5) for _ in range(4)], sh.SwitchingSSM(sh.Markov(2), sh.Normal(1))
    with pytest.warns(UserWarning, match='subjects: has no effect, because with pooled="complete"'):
        model.fit(x, subjects=["a", "a", "b", "b"], **QUICK)


@pytest.mark.parametrize("name", ["weights", "noise", "inputs", "dt"])
def test_numbers_beyond_the_dtype_of_x_are_named(name):
    emission = sh.LinearRegression(1, inputs=1) if name == "inputs" else sh.Normal(1)
    model = sh.SwitchingSSM(sh.Copy(2) if name == "dt" else sh.Markov(2), emission)
    x = np.zeros((5, 1), np.float32)
    with pytest.raises(
        ValueError, match=rf"^{name}: got 1e\+300, which torch.float32, the dtype of x, cannot represent"
    ):
        model.read(x, **{name: [1e300] * 5})
    model.read(x.astype(float), **{name: [1e300] * 5})
