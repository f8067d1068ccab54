"""Models survive the disk."""

import json

import pytest
import torch
from oracles.models import KINDS, random_model
from samplehold import Copy, Normal, SwitchingSSM
from torch.testing import assert_close


@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_a_saved_model_comes_back_the_same(tmp_path, dynamics, emission):
    model = random_model(dynamics, emission)
    model.save(tmp_path / "model")
    again = SwitchingSSM.load(tmp_path / "model")
    assert type(again.emission) is type(model.emission)
    assert_close(again.values, model.values, rtol=0, atol=0)
    assert_close(again.prior, model.prior, rtol=0, atol=0)
    if dynamics == "copy":
        x = model.simulate(10, seed=0).x
        assert_close(again.log_evidence(x), model.log_evidence(x), rtol=0, atol=0)


def test_a_model_without_values_can_be_saved(tmp_path):
    SwitchingSSM(Copy(3), Normal(2)).save(tmp_path)
    assert SwitchingSSM.load(tmp_path).values == {}


def test_the_description_is_for_people(tmp_path):
    random_model("copy", "gated").save(tmp_path)
    text = json.loads((tmp_path / "model.json").read_text())
    assert text["dynamics"]["class"] == "Copy"
    assert text["emission"]["background"] == {"class": "Normal", "n_features": 2}


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no model\.json and no values\.safetensors"):
        SwitchingSSM.load(tmp_path)
    random_model("copy", "normal").save(tmp_path)
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(ValueError, match="not the description of a model"):
        SwitchingSSM.load(tmp_path)
    (tmp_path / "model.json").write_text("[1")
    with pytest.raises(ValueError, match="not the description of a model"):
        SwitchingSSM.load(tmp_path)


def test_values_keep_their_dtype(tmp_path):
    model = random_model("copy", "normal")
    model = model.with_values({name: value.to(torch.float32) for name, value in model.values.items()})
    model.save(tmp_path)
    assert SwitchingSSM.load(tmp_path).loc.dtype == torch.float32
