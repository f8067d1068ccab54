"""The study of truncated training, small: what it says of one network is what its parts give."""

import inspect
import itertools
from importlib import import_module

import pandas as pd
import pytest
import study as studies
import torch
import truncation
from samplehold import MinGRU, truncate
from samplehold.face.studies import stability
from torch.testing import assert_close

SMALL = truncation.Plan((2, 30), 4, 4, 0.5, 20)


@pytest.mark.parametrize("kind", truncation.LAYERS)
@pytest.mark.parametrize("kept", [True, False])
def test_a_window_that_cuts_nothing_off_changes_nothing_and_bounds_hold(kind, kept):
    rows = dict(zip(SMALL.windows, truncation.compared(truncation.tokens(SMALL), kind, kept, 0, SMALL), strict=True))
    (cut, path), (all_, same) = rows[2], rows[30]
    assert len(path) == SMALL.steps
    assert max(same) < 1e-5 < path[-1]
    assert all_["gradient distance"] < 1e-5 < cut["gradient distance"]
    assert all_["output error"] <= 1e-6
    assert 1e-6 < cut["output error"] <= cut["proved"] + 1e-6
    assert_close(all_["loss, truncated"], all_["loss"], rtol=1e-5, atol=0)


def test_layers_are_the_same_before_training_and_free_of_parametrisations_after():
    model = truncation.Predictor(truncation.stable(truncation.make_layer(truncation.GRU, 4, 3), lipschitz=0.5), 4, 3)
    plain = truncation._free(model.layer)
    x = torch.rand(2, 9, 4)
    assert not hasattr(plain, "parametrizations")
    assert_close(truncate(plain, 3)(x.double()).float(), model.truncated(x), rtol=1e-5, atol=1e-6)
    assert stability(plain, 1.0).rate <= 0.5
    other = truncation.make_layer(MinGRU, 4, 3, seed=1)
    assert truncation._free(other).weight_l0.equal(other.weight_l0.double())


def test_bounds_that_are_too_great_to_be_drawn_are_named():
    cases = list(itertools.product(truncation.LAYERS, ("stable", "free"), SMALL.windows))
    named = [{"data": "tokens", "network": kind, "weights": w, "window": window} for kind, w, window in cases]
    great = {("GRU", "free", 2), ("GRU", "stable", 30)}
    bounds = [{"output error": 0.1, "proved": 1e6 if case in great else 0.5} for case in cases]
    mean = pd.DataFrame([where | bound for where, bound in zip(named, bounds, strict=True)])
    figure = truncation.drawn(mean, [where | {"path": [0.1, 0.2]} for where in named])
    titles = {k: panel.get_title(loc="left") for k, panel in zip(truncation.LAYERS, figure.axes[4:], strict=True)}
    assert titles.pop("GRU") == "proved bounds of 1000 or more, not drawn:\nstable at 30; free at 2"
    assert set(titles.values()) == {""}


def test_every_study_takes_a_seed_and_data_follow_it():
    for module in studies.STUDIES.values():
        parameters = inspect.signature(import_module(module).study).parameters
        assert list(parameters) == ["scale", "track", "seed"]
        assert parameters["seed"].default == 0
    assert studies.seeds_from(4, "quick") == (4,)
    assert studies.seeds_from(0, "full") == (0, 1, 2)
    first, again, other = (truncation.tokens(SMALL, seed).train for seed in (0, 0, 1))
    assert first.equal(again)
    assert not first.equal(other)


def test_studies_are_named():
    with pytest.raises(ValueError, match=r"name: got 'none', expected"):
        studies.study("none")
    with pytest.raises(ValueError, match=r"scale: got 'huge', expected"):
        studies.study("truncation", "huge")
    with pytest.raises(ValueError, match=r"seed: got -1, expected"):
        studies.study("truncation", seed=-1)
