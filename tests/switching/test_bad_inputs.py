"""What a user may get wrong about inputs, masks and known states: each error names argument, value and cure."""

import numpy as np
import pytest
import samplehold as sh

RNG = np.random.default_rng(0)
X = RNG.normal(size=30)
PATH = np.tile([0.0, 1.0, 2.0], 10)
QUIET = {"restarts": 1, "progress": False}
N = np.nan


def forward(**options: object) -> sh.SwitchingSSM:
    return sh.SwitchingSSM(sh.Markov.left_right(3, **options), sh.Normal(1))


@pytest.mark.parametrize(
    ("model", "states", "fixed", "said"),
    [
        (
            forward(),
            PATH,
            None,
            r"^states: got 0 at step 3, but no possible path leads there .* in mask, initial or fixed",
        ),
        (forward(), np.where(np.arange(30) % 5 == 0, PATH, N), None, "^states: got 1 at step 10"),
        (forward(initial=[1.0, 0.0, 0.0]), np.r_[1.0, np.full(29, N)], None, "^states: got 1 at step 0"),
        (forward(), [PATH[:3], PATH[2:6]], None, "^states: got 0 at step 1 of sequence 1"),
        (
            sh.SwitchingSSM(sh.Markov(3), sh.Normal(1)),
            PATH,
            {"transition_probs": [[N, 0.0, N], [N] * 3, [N] * 3]},
            "^states: got 1 at step 1",
        ),
    ],
    ids=["mask", "gap", "initial", "ragged", "fixed"],
)
def test_known_states_that_no_path_has_are_named(model, states, fixed, said):
    x = [X[:3], X[:4]] if isinstance(states, list) else X
    with pytest.raises(ValueError, match=said):
        model.fit(x, states=states, fixed=fixed, **QUIET)
    allowed = [np.sort(part) for part in states] if isinstance(states, list) else np.zeros(30)
    assert fixed or model.read(x, states=allowed).states is not None


def test_inputs_that_decide_a_gate_are_named_and_a_prior_cures():
    x = np.r_[np.zeros(10), np.full(10, 9.0), np.zeros(10)] + 0.1 * X
    jump = np.zeros(30)
    jump[[10, 20]] = 1.0
    for dynamics, name in ((sh.Copy(2, inputs=["jump"]), "redraw"), (sh.Markov(2, inputs=["jump"]), "transition")):
        model = sh.SwitchingSSM(dynamics, sh.Normal(1))
        with pytest.warns(UserWarning, match=rf"^{name}_weights: inputs decide .* so far\. Fit with prior='weak'"):
            model.fit(x, inputs={"jump": jump}, prior=None, **QUIET)
        model.fit(x, inputs={"jump": jump}, **QUIET)  # a warning is an error here


def test_dependent_inputs_of_each_part_are_named():
    ages = RNG.normal(size=6)
    given = {"age": np.repeat(ages[:, None], 5, 1), "months": np.repeat(12 * ages[:, None], 5, 1)}
    for dynamics, argument in (
        (sh.Markov(2, initial_inputs=["age", "months"]), "initial_inputs"),
        (sh.Markov(2, inputs=["age", "months"]), "inputs"),
        (sh.Copy(2, inputs=["age", "months"]), "inputs"),
    ):
        with pytest.raises(ValueError, match=rf"^{argument}: 'age' and 'months' are linearly dependent.*leave one"):
            sh.SwitchingSSM(dynamics, sh.Normal(1)).fit(X.reshape(6, 5, 1), inputs=given, **QUIET)


def test_emissions_with_inputs_or_lags_in_other_models_are_refused_with_a_cure():
    driven, lagged = sh.LinearRegression(1, inputs=["dose"]), sh.AutoRegressive(1)
    for name, got, build in (
        ("emission", "AutoRegressive", lambda: sh.Gated(lagged, sh.Normal(1))),
        ("background", "AutoRegressive", lambda: sh.Gated(sh.Normal(1), lagged)),
        ("emission", "LinearRegression", lambda: sh.LayeredSSM([2, 2], driven)),
    ):
        with pytest.raises(ValueError, match=rf"^{name}: got {got}.*use SwitchingSSM\(dynamics, emission\)"):
            build()
