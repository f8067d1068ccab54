"""`sh.select`: criteria of several candidates, held-out likelihoods, and refusals of models of different data."""

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from oracles.models import KINDS, drive, every_path, numbers, random_model
from samplehold.switching.judging.entropy import of_paths, states_entropy

FAST = {"restarts": 1, "max_steps": 20}


def copies(k: int) -> sh.SwitchingSSM:
    return sh.SwitchingSSM(sh.Copy(k), sh.Normal(1))


# ---- the entropy of states -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dynamics", "emission"), [kind for kind in KINDS if kind[1] in ("normal", "gated", "poisson")]
)
def test_the_entropy_of_states_is_that_of_all_their_paths(dynamics, emission):
    model, given = random_model(dynamics, emission), drive(dynamics, (), 4)
    x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [torch.nan, 2.0], [0.0, 0.0]]).double()
    paths, log_joint = every_path(model, x, **given)
    weight = torch.zeros(model.n_states**4, dtype=torch.float64)
    number = (paths * model.n_states ** torch.arange(4)).sum(-1)
    weight.index_add_(0, number, log_joint.softmax(0).double())
    assert states_entropy(model, model.read(x, **given)) == pytest.approx(
        float(torch.special.entr(weight).sum()), rel=1e-9
    )


def test_without_gates_it_is_the_entropy_of_the_chain():
    model = random_model("markov", "normal")
    problem = model.problem(numbers(3, 6, 2), lengths=[6, 4, 1])
    torch.testing.assert_close(of_paths(problem, model.values), problem.chain(model.values).entropy())


def test_icl_of_a_model_without_states_is_refused_as_a_criterion(nile):
    with pytest.raises(ValueError, match=r"criterion: icl: got a LinearSSM, .*use bic"):
        sh.select(lambda n: sh.LinearSSM(n, 1), nile[:20], [1], "icl", max_steps=3, restarts=1)


@pytest.mark.parametrize("prior", [None, "weak"])
def test_a_category_that_is_first_seen_when_held_out_has_a_cure(prior):
    x = [0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1, 2, 1, 0, 2, 1, 0, 1]

    def make(one):
        return sh.SwitchingSSM(sh.Markov(1), sh.Categorical(3, prior=one))

    fast = {"restarts": 1, "max_steps": 5, "prior": prior}
    with pytest.raises(ValueError, match=r"step 13 is impossible .*Categorical\(n_categories, prior=2.0\)") as said:
        sh.select(make, x, [1.0], "heldout", **fast)
    assert ('prior="weak"' in str(said.value)) is (prior is None)
    with pytest.raises(ValueError, match=r"step 13 is impossible .*because they have none like it"):
        sh.backtest(make(1.0), x, refit_every=5, horizon=1, first=10, **fast)
    if prior == "weak":
        assert bool(np.isfinite(sh.select(make, x, [2.0], "heldout", **fast).table.heldout).all())
        assert bool(np.isfinite(sh.backtest(make(2.0), x, horizon=1, first=10, **fast).forecasts.log_score).all())


def test_icl_adds_twice_the_entropy_to_bic(nile):
    fit = copies(2).fit(nile[:40], progress=False, **FAST)
    assert fit.icl == pytest.approx(fit.bic + 2 * states_entropy(fit.model, fit.series), rel=1e-12)
    assert fit.icl > fit.bic
    with pytest.raises(TypeError, match="icl: got a LinearSSM"):
        states_entropy(sh.LinearSSM(sh.LocalLevel()).with_values({"sigma2.irregular": 1.0, "sigma2.level": 1.0}), nile)


# ---- choices ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chosen(nile):
    return sh.select(copies, nile, range(1, 4), restarts=2)


def test_the_nile_has_two_states(chosen):
    assert (chosen.best, chosen.fit.model.n_states, chosen.place) == (2, 2, 1)
    assert chosen.table.columns.tolist() == [
        *("candidate", "loglik", "n_parameters", "aic", "bic", "icl", "converged", "agreeing", "n_kinds"),
    ]
    assert chosen.table.candidate.tolist() == [1, 2, 3]


def test_the_table_has_the_numbers_of_the_fits(chosen, nile):
    for row, fit in zip(chosen.table.to_dict("records"), chosen.fits, strict=True):
        for name in ("loglik", "n_parameters", "aic", "bic", "icl", "converged", "agreeing", "n_kinds"):
            assert row[name] == getattr(fit, name)
    alone = copies(2).fit(nile, restarts=2, progress=False)
    torch.testing.assert_close(alone.values, chosen.fit.values)


def test_it_prints_the_table_and_the_best(chosen):
    assert repr(chosen).splitlines()[-1] == "Best by bic: 2"
    assert "n_parameters" in repr(chosen)
    assert "Best by bic: 2" in chosen._repr_html_()
    (panel,) = chosen.plot().axes
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["aic", "bic", "icl"]
    assert panel.get_title(loc="left") == "Best by bic: 2"


@pytest.mark.parametrize("criterion", ["aic", "icl"])
def test_other_criteria_choose_their_own_least(nile, criterion):
    few = sh.select(copies, nile[:60], [1, 2], criterion, **FAST)
    assert few.best == few.table.candidate[few.table[criterion].argmin()]


def test_sequences_are_left_out_in_turn():
    parts = [numbers(n, 1, seed=n) + 3 * (torch.arange(n).unsqueeze(-1) % 8 > 3) for n in (12, 9, 30, 11, 13)]
    found = sh.select(copies, parts, [1, 2], "heldout", folds=2, **FAST)
    total = 0.0
    for left in ([0, 2, 4], [1, 3]):
        kept = [part for i, part in enumerate(parts) if i not in left]
        model = copies(2).fit(kept, progress=False, **FAST).model
        total += sum(float(model.log_evidence(parts[i])) for i in left)
    assert found.table.heldout[1] == pytest.approx(total, rel=1e-6)
    assert found.best == found.table.candidate[found.table.heldout.argmax()]
    assert len(found.plot().axes) == 2


def test_one_series_is_left_out_block_by_block(nile):
    x = nile[60:]
    found = sh.select(copies, x, [2], "heldout", folds=2, **FAST)
    total = 0.0
    for end, after in ((20, 30), (30, 40)):
        model = copies(2).fit(x[:end], progress=False, **FAST).model
        total += float(model.filter(x[:after]).log_increment[end:].sum())
    assert found.table.heldout[0] == pytest.approx(total, rel=1e-9)


@pytest.mark.slow
def test_message_passing_is_chosen_by_held_out_data(nile):
    found = sh.select(copies, nile[80:], [1, 2], "heldout", folds=2, method="vmp", **FAST)
    assert "bic" not in found.table
    assert np.isfinite(found.table.heldout).all()


def test_lags_are_compared_where_all_are_known(nile):
    def lags(p: int) -> sh.SwitchingSSM:
        return sh.SwitchingSSM(sh.Markov(1), sh.AutoRegressive(p))

    with pytest.raises(ValueError, match=r"39 step\(s\) with a density for 1 and 38 .* by before="):
        sh.select(lags, nile[:40], [1, 2], **FAST)
    found = sh.select(lags, nile[2:40], [1, 2], before=nile[:2].to_numpy(), prior=None, **FAST)
    assert found.table.loglik[1] > found.table.loglik[0]


def test_inputs_go_through(nile):
    dose = pd.DataFrame({"dose": np.arange(30) % 3}, index=nile.index[:30])

    def gate(reads: list[str]) -> sh.SwitchingSSM:
        return sh.SwitchingSSM(sh.Copy(2, inputs=reads or 0), sh.Normal(1))

    found = sh.select(gate, nile[:30], [[], ["dose"]], inputs=dose, **FAST)
    assert found.table.n_parameters.tolist() == [6, 7]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"make": lambda k: sh.SwitchingSSM(sh.Copy(2), sh.Normal(k))},
            ValueError,
            r"^make: got 1 feature\(s\) for 1 and",
        ),
        (
            {"make": lambda e: sh.SwitchingSSM(sh.Copy(2), e), "candidates": [sh.Normal(1), sh.Poisson(1)]},
            ValueError,
            "^make: got densities for .* and probabilities of whole numbers",
        ),
        ({"make": 3}, TypeError, "^make: got int, expected a function"),
        ({"make": sh.SwitchingSSM(sh.Copy(2), sh.Normal())}, TypeError, "^make: got SwitchingSSM, expected a function"),
        ({"make": lambda k: k}, TypeError, "^make: got int for 1, expected a model"),
        ({"candidates": []}, ValueError, "^candidates: got none"),
        ({"candidates": 3}, TypeError, "^candidates: got 3, expected several"),
        ({"candidates": [40]}, ValueError, "^candidates: 40 fails. x: got 30 observed"),
        ({"criterion": "dic"}, ValueError, "^criterion: got 'dic'"),
        ({"method": "vmp"}, ValueError, "^criterion: got 'bic', but a fit by 'vmp' .* use method=\"em\""),
        ({"criterion": "heldout", "folds": 20}, ValueError, "folds: got 20 for 30 step"),
        ({"criterion": "heldout", "pooled": "none"}, ValueError, "^pooled: parameters by subject"),
        ({"folds": 1}, ValueError, "^folds: got 1"),
        ({"horizon": 1}, TypeError, "^fit: has no option 'horizon'"),
    ],
)
def test_bad_input_is_named(nile, change, error, message):
    given = {"make": copies, "x": nile[:30], "candidates": [1, 2], **FAST} | change
    with pytest.raises(error, match=message):
        sh.select(**given)


def test_the_weight_of_one_series_counts_what_is_left_out():
    x, fast = numbers(20, 1), {"criterion": "heldout", "prior": None, **FAST}
    once, twice = (sh.select(copies, [x], [1], weights=[weight], **fast).table.heldout[0] for weight in (1.0, 2.0))
    assert twice == pytest.approx(2 * once, rel=1e-9)


def test_the_class_of_a_model_is_no_model():
    with pytest.raises(TypeError, match="make: got the class SwitchingSSM for 1, expected a model"):
        sh.select(lambda _: sh.SwitchingSSM, numbers(20, 1), [1])
