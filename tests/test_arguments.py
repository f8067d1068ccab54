"""One checker for each kind of argument: what is taken, what is refused, and by which name."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from oracles.coupled import factorial_of, layered_of
from samplehold.inference.numerics import checks, scalars
from samplehold.inference.numerics.randomness import generator_of

pytestmark = pytest.mark.usefixtures("as_users_call")

NAN, INF = float("nan"), float("inf")
NO_NUMBERS = (None, "3", b"3", True, np.True_, torch.tensor(True), 3j, [3], {3}, object(), datetime.date(2020, 1, 1))


@pytest.mark.parametrize("three", [3, np.int8(3), np.uint64(3), np.array(3), torch.tensor(3)])
def test_integers_are_taken_in_every_form(three):
    found = scalars.check_integer("n", three)
    assert found == 3
    assert type(found) is int


@pytest.mark.parametrize("bad", [*NO_NUMBERS, 3.0, np.float64(3.0), torch.tensor(3.0), Decimal(3), NAN])
def test_what_is_no_integer_is_a_type_error(bad):
    with pytest.raises(TypeError, match=r"^n: got .*, expected an integer of at least 1"):
        scalars.check_integer("n", bad)


def test_integers_have_bounds():
    for bad in (0, -1, 2**70, np.int64(0)):
        with pytest.raises(ValueError, match=r"^n: got .*, expected an integer of at least 1"):
            scalars.check_integer("n", bad)
    with pytest.raises(ValueError, match=r"^layer: got 2, expected an integer from 0 to 1"):
        scalars.check_integer("layer", 2, least=0, most=1)


@pytest.mark.parametrize("half", [0.5, np.float32(0.5), torch.tensor(0.5), np.array(0.5), Decimal("0.5")])
def test_numbers_are_taken_in_every_form(half):
    assert scalars.check_number("scale", half, above=0) == scalars.check_probability("level", half) == 0.5


@pytest.mark.parametrize("bad", NO_NUMBERS)
def test_what_is_no_number_is_a_type_error(bad):
    with pytest.raises(TypeError, match=r"^scale: got "):
        scalars.check_number("scale", bad)
    with pytest.raises(TypeError, match=r"^level: got "):
        scalars.check_probability("level", bad)


@pytest.mark.parametrize("bad", [NAN, INF, -INF, 0.0, -1.0, 10**400, Decimal("NaN")])
def test_numbers_have_bounds(bad):
    with pytest.raises(ValueError, match=r"^scale: got .*, expected a finite number greater than 0"):
        scalars.check_number("scale", bad, above=0)
    with pytest.raises(ValueError, match=r"^level: got .*, expected a probability between 0 and 1"):
        scalars.check_probability("level", bad, proper=True)


def test_choices_flags_and_shapes():
    assert scalars.check_choice("prior", None, ("weak", None)) is None
    for bad in ("other", 1, None, ["tanh"], np.array(["tanh"])):
        with pytest.raises(ValueError, match=r"^candidate: got .*, expected one of 'tanh', 'linear'"):
            scalars.check_choice("candidate", bad, ("tanh", "linear"))
    assert scalars.check_flag("bias", np.True_) is True
    with pytest.raises(TypeError, match=r"^bias: got 1, expected True or False"):
        scalars.check_flag("bias", 1)
    assert scalars.check_batch_shape("batch_shape", [np.int64(2), 0]) == (2, 0)
    for bad in (3, None, "ab", (1.5,), (True,)):
        with pytest.raises(TypeError, match=r"^batch_shape: got "):
            scalars.check_batch_shape("batch_shape", bad)
    with pytest.raises(ValueError, match=r"^batch_shape: got -1"):
        scalars.check_batch_shape("batch_shape", (2, -1))


def test_seeds():
    assert generator_of(np.int64(5)).initial_seed() == generator_of(torch.tensor(5)).initial_seed() == 5
    for bad in (1.0, "1", True, [1], object()):
        with pytest.raises(TypeError, match=r"^seed: got .*, expected an integer, a torch.Generator, or None"):
            generator_of(bad)
    with pytest.raises(ValueError, match=r"^seed: got "):
        generator_of(2**70)


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**64 - 1])
def test_fits_take_every_seed_that_torch_takes(seed):
    rows = torch.arange(12.0) % 5
    chains = factorial_of(HALF, [HALF, HALF], [LOC, LOC], torch.eye(1))
    for own in (model(), chains):
        first, second = (own.fit(rows, restarts=2, max_steps=2, seed=seed, progress=False) for _ in range(2))
        assert torch.equal(first.objective, second.objective)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (np.zeros((2, 3)), TypeError, "expected a torch tensor"),
        (torch.zeros(2, 3, device="meta"), TypeError, "dense tensor with values"),
        (torch.zeros(2, 3).to_sparse(), TypeError, "dense tensor with values"),
        (torch.zeros(2, 3, dtype=torch.int64), TypeError, "got dtype torch.int64"),
        (torch.zeros(2, 3, dtype=torch.complex64), TypeError, "got dtype torch.complex64"),
        (torch.zeros(3), ValueError, r"expected \[\*batch, any, 3\]"),
        (torch.zeros(2, 4), ValueError, r"got shape \[2, 4\]"),
        (torch.full((2, 3), NAN), ValueError, "not finite"),
    ],
)
def test_tables(bad, error, message):
    with pytest.raises(error, match=rf"^x: .*{message}"):
        checks.check_table("x", bad, None, 3, finite=True)
    assert checks.check_table("x", torch.zeros(5, 2, 3), None, 3, finite=True).shape == (5, 2, 3)


HALF, LOC = torch.tensor([0.5, 0.5]), torch.zeros(2, 1)
VALUES = {"redraw_prob": 0.2, "state_probs": HALF, "loc": LOC, "scale": LOC + 1}


def model(**values):
    return sh.SwitchingSSM(sh.Copy(2), sh.Normal()).with_values(VALUES | values)


def mixture():
    return sh.stacks.StackMixture(torch.zeros(3, 3), torch.zeros(3, 1))


def layers(loc):
    values = {"loc": torch.full((2, 1), loc, dtype=torch.float64), "scale": LOC.double() + 1}
    return layered_of(sh.Normal(), values, HALF, [torch.full((2, 2), 0.5)], HALF)


def report():
    own = sh.SwitchingSSM(sh.Copy(2), sh.Gated(sh.Categorical(2), sh.Categorical(2)))
    values = {"redraw_prob": 0.3, "state_probs": HALF, "probs": [[0.9, 0.1], [0.1, 0.9]]}
    own = own.with_values(values | {"background_probs": [[0.5, 0.5]]})
    return sh.compare(own, sh.as_rnn(own), [0, 1, 1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: model(scale=LOC - 1), ValueError, "scale: got -1"),
        (lambda: model(redraw_prob=[0.1, 0.2, 0.3]), ValueError, r"redraw_prob: got shape \(3,\)"),
        (lambda: model(redraw_prob=[]), ValueError, r"redraw_prob: got shape \(0,\)"),
        (lambda: model(scale=LOC + 1e300), ValueError, "scale: got "),
        (lambda: sh.Copy(2, inputs=1.5), TypeError, "inputs: got 1.5"),
        (lambda: sh.Copy(2, inputs=["a", 1]), TypeError, "inputs: got int, expected names of inputs"),
        (lambda: sh.Copy(2, inputs={}), TypeError, r"inputs: got \{\}, expected an integer"),
        (lambda: sh.Formula(3, pd.DataFrame({"a": [1.0]})), TypeError, "formula: got int"),
        (lambda: sh.Formula("a", pd.DataFrame({"a": [1.0]})).at([1.0]), TypeError, "table: got list"),
        (lambda: sh.Markov(2, sticky=INF), ValueError, "sticky: got inf"),
        (lambda: sh.Copy(True), TypeError, "n_states: got True"),
        (lambda: sh.Copy(2, state_prior=True), TypeError, "state_prior: got booleans"),
        (lambda: model(redraw_prob=True), TypeError, "redraw_prob: got booleans"),
        (lambda: sh.Copy(2, state_prior="1"), TypeError, "state_prior: got str"),
        (lambda: sh.Categorical(3, prior=[1.0, NAN, 1.0]), ValueError, "prior: got "),
        (
            lambda: factorial_of(HALF, [HALF, HALF], [LOC + NAN, LOC]),
            ValueError,
            "loc_1: got values that are not",
        ),
        (lambda: factorial_of(HALF, [HALF, HALF], [LOC, LOC]).log_evidence([0.5]), ValueError, "x: got 0.5"),
        (lambda: factorial_of(HALF, [HALF, HALF * 3], [LOC, LOC]), ValueError, "state_probs_2: got rows"),
        (lambda: factorial_of(HALF, [HALF, HALF], [LOC + 60, LOC + 60]), ValueError, "loc: got log rates"),
        (lambda: factorial_of(HALF, [HALF, HALF], [LOC - 7e9, LOC]), ValueError, "loc: got log rates"),
        (
            lambda: factorial_of(0.5, [HALF], [LOC]),
            ValueError,
            r"redraw_prob: got shape \(\); FactorialSSM needs \[1\]",
        ),
        (lambda: sh.FactorialSSM(2, sh.Poisson(1)), TypeError, "chain_sizes: got int"),
        (lambda: sh.FactorialSSM([2, 0], sh.Poisson(1)), ValueError, r"chain_sizes\[1\]: got 0"),
        (lambda: sh.FactorialSSM([2], sh.Normal(1)), TypeError, "emission: got Normal"),
        (
            lambda: sh.as_ssm(sh.MinGRU(2, 1), token_probs=torch.tensor([1j, 1.0])),
            TypeError,
            "token_probs: got complex",
        ),
        (lambda: sh.as_ssm(sh.MinGRU(2, 1)).hidden([0], torch.full((1, 1), NAN)), ValueError, "h0: got numbers"),
        (lambda: sh.MinGRU(2, 1)(torch.zeros(3, 2), torch.full((1, 1), NAN)), ValueError, "hx: got numbers"),
        (lambda: sh.GRU(2, 1)(torch.zeros(3, 2), torch.full((1, 1), INF)), ValueError, "hx: got numbers"),
        (lambda: sh.linear_scan(LOC, LOC, torch.tensor([NAN])), ValueError, "h0: got numbers"),
        (lambda: sh.MinGRU(2, 1)(torch.zeros(3, 2).double()), TypeError, "x: got torch.float64"),
        (lambda: sh.MinGRU(2, 1)([[0.0, 0.0]]), TypeError, "x: got list"),
        (lambda: sh.LSTM(2, 1)(torch.zeros(3, 2), torch.zeros(1, 1)), TypeError, "hx: got Tensor, expected a pair"),
        (lambda: sh.GRU(0, 1), ValueError, "input_size: got 0"),
        (lambda: sh.QRNN(2, 1, window=1.0), TypeError, "window: got 1.0"),
        (lambda: sh.MinGRU(2, 1, dtype=torch.int64), TypeError, "dtype: got torch.int64"),
        (lambda: mixture().read_likelihood(torch.zeros(3, 1), -1), ValueError, "scale: got -1"),
        (lambda: mixture().sample(2.0), TypeError, "n: got 2.0"),
        (lambda: mixture().read_likelihood(None, 1.0), TypeError, "reads: got NoneType"),
        (lambda: mixture().plot(1.5), TypeError, "sequence: got 1.5"),
        (lambda: mixture().plot(steps=3), TypeError, "steps: got int, expected a list"),
        (lambda: mixture().viterbi().plot(names="abc"), TypeError, "names: got str, expected a list"),
        (lambda: sh.stacks.stack_program(object(), scale=1.0), TypeError, "mixture: got object"),
        (
            lambda: sh.stacks.stack_program(mixture(), scale=1e-300),
            ValueError,
            "scale: got 1e-300, whose square float32",
        ),
        (lambda: mixture().read_likelihood(torch.zeros(3, 1), 1e30), ValueError, "scale: got 1e[+]30, whose square"),
        (
            lambda: sh.chains.MarkovChain(None, torch.zeros(2, 2), torch.zeros(3, 2)),
            TypeError,
            "log_initial: got NoneType",
        ),
        (lambda: sh.chains.CopyChain(None, LOC, LOC).sample(3.5), TypeError, "n: got 3.5"),
        (lambda: model().log_evidence([1e200]), ValueError, "x: the observation at step 0 is impossible"),
        (lambda: model().states([1e200]), ValueError, "x: the observation at step 0 is impossible"),
        (lambda: model().fit([0.0] * 9, restarts=2.0), TypeError, "restarts: got 2.0"),
        (lambda: model().fit([0.0] * 9, tol=NAN), ValueError, "tol: got nan"),
        (lambda: model().fit([0.0] * 9, fixed=[1]), TypeError, "fixed: got list"),
        (lambda: model().simulate(3, 2), TypeError, "batch_shape: got 2"),
        (lambda: model().forecast([0.0], 1.5), TypeError, "horizon: got 1.5"),
        (lambda: model().forecast([0.0], 1).interval(1.0), ValueError, "level: got 1.0"),
        (lambda: model().update(model().start(), INF), ValueError, "x_t: got an infinite value"),
        (lambda: model().with_prior({"loc": 1}), ValueError, "prior: got loc"),
        (lambda: sh.filter_vmp("model", [0.0]), TypeError, "model: got str"),
        (lambda: sh.filter_vmp(model(), [0.0], gate=object()), TypeError, "gate: got object"),
        (
            lambda: sh.filter_vmp(model(), [0.0], gate=torch.nn.Linear(1, 1)),
            ValueError,
            "gate: this function fails for float64 of shape",
        ),
        (lambda: model().plot([0.0] * 3, sequence=[0]), TypeError, r"sequence: got \[0\]"),
        (lambda: model().plot_forecast([0.0] * 3, "2"), TypeError, "horizon: got '2'"),
        (lambda: model().to_arviz([0.0] * 3, draws=2.0), TypeError, "draws: got 2.0"),
        (lambda: report().plot(1), ValueError, "sequence: got 1, but there are 1"),
        (lambda: report().plot(steps=3), TypeError, "steps: got int, expected a slice"),
        (
            lambda: layers(1e200).bottom_up([[0.0]]),
            ValueError,
            "x: the observation at step 0 is impossible",
        ),
        (lambda: factorial_of(HALF, [HALF, HALF], [LOC, LOC[:, :0]]), ValueError, r"loc_2: got shape \(2, 0\)"),
        (lambda: model().save(None), TypeError, "path: got None, expected a path"),
        (lambda: model().save(""), ValueError, "path: got '', expected the path of a file or folder"),
        (lambda: model().save("a\0b"), ValueError, "path: got 'a"),
        (lambda: sh.SwitchingSSM.load("\ud800"), ValueError, "path: got "),
        (lambda: sh.SwitchingSSM.load(b"model"), TypeError, "path: got b'model', expected a path"),
        (lambda: sh.one_hot([0, 1], True), TypeError, "n_tokens: got True"),
        (lambda: sh.one_hot([True], 2), TypeError, "tokens: got booleans"),
        (lambda: sh.compare(model(), "layer", [0.0] * 9), TypeError, "layer: got str"),
        (
            lambda: sh.compare(model(), torch.nn.Linear(2, 2), [0.0] * 9),
            ValueError,
            "layer: this function fails for float32 of shape",
        ),
        (lambda: sh.fit_probe(LOC, LOC, torch.zeros(2, 0)), ValueError, "inputs: got no columns"),
        (
            lambda: sh.studies.forgetting(sh.MinGRU(1, 1), LOC + NAN, 0.1),
            ValueError,
            "x: got numbers that are not finite",
        ),
        (lambda: sh.studies.stability(sh.GRU(1, 1), NAN), ValueError, "input_bound: got nan"),
        (lambda: sh.truncate(sh.GRU(1, 1), True), TypeError, "window: got True"),
        (lambda: sh.studies.information_sweep(separations=[-1.0]), ValueError, r"separations: got \[-1.0\]"),
        (lambda: sh.studies.information_sweep(spread=1e9), ValueError, r"spread: got 1e[+]09"),
        (lambda: sh.studies.price_of_exactness(overlaps=[2.0]), ValueError, r"overlaps: got \[2.0\]"),
        (lambda: sh.studies.train_next_token(sh.MinGRU(2, 1), torch.zeros(2, 3, 2), rate=0), ValueError, "rate: got 0"),
        (
            lambda: sh.studies.train_next_token(torch.nn.Linear(2, 2), torch.zeros(2, 3, 3)),
            ValueError,
            "layer: this function fails for float32 of shape",
        ),
        (
            lambda: sh.studies.train_next_token(sh.MinGRU(2, 1), torch.zeros(2, 3, 2), rate=1e300),
            ValueError,
            "rate: got 1e[+]300, expected at most",
        ),
        (lambda: sh.studies.SoftmaxRegression(LOC, torch.zeros(3)), ValueError, r"bias: got shape \[3\]"),
        (lambda: sh.studies.GaussianClasses(HALF.log(), LOC, -torch.eye(1)), ValueError, "covariance: not symmetric"),
        (
            lambda: sh.layouts.from_keras("gru", np.zeros((2, 5)), np.zeros((1, 3)), reset_after=True),
            ValueError,
            r"kernel: got shape \[2, 5\]",
        ),
        (lambda: sh.layouts.from_torch(torch.nn.GRU(1, 1), layer=1), ValueError, "layer: got 1"),
        (lambda: sh.read_panel(None, "a"), TypeError, "frame: got NoneType"),
    ],
)
def test_what_is_wrong_is_refused_by_the_name_that_the_caller_gave_it(call, error, message):
    with pytest.raises(error, match=rf"^{message}"):
        call()


def test_parameters_of_coupled_models_come_in_every_form():
    plain = factorial_of(HALF.double(), [HALF.double()] * 2, [LOC.double()] * 2)
    lists = factorial_of([0.5, 0.5], [[0.5, 0.5]] * 2, [np.zeros((2, 1))] * 2)
    torch.testing.assert_close(lists.log_evidence([1, 2, 0]), plain.log_evidence([1, 2, 0]))


def test_sizes_of_numpy_are_sizes():
    assert sh.Copy(np.int64(2)) == sh.Copy(2)
    assert sh.MinGRU(np.int64(2), np.int64(3))(torch.zeros(4, 2))[0].shape == (4, 3)
    assert model().forecast([0.0], np.int64(2)).mean.shape == (2, 1)


def test_a_length_for_no_sequence_is_refused_by_name_and_no_lengths_fit_no_steps():
    none, one = torch.zeros(0, 4, 3), torch.zeros(1)
    for bad in (0, 5):
        with pytest.raises(ValueError, match=rf"^lengths: got {bad}, but the series has 4 steps"):
            sh.chains.FactoredCopyChain(one, one, torch.zeros(3), none, lengths=bad)
    out, _ = sh.MinGRU(1, 2)(torch.zeros(0, 0, 1), lengths=torch.zeros(0, dtype=torch.int64))
    assert out.shape == (0, 0, 2)


@pytest.mark.parametrize("verb", ["entropy", "viterbi", "change_probability", "mean_field", "smooth"])
@pytest.mark.parametrize("name", ["log_redraw", "log_hold", "log_state", "log_likelihood"])
def test_factored_chains_name_their_own_tables(verb, name):
    shapes = {"log_redraw": (1,), "log_hold": (1,), "log_state": (3,), "log_likelihood": (2, 4, 3)}
    tables = {one: torch.zeros(shape) for one, shape in shapes.items()}
    for bad in (INF, NAN):
        with pytest.raises(ValueError, match=rf"^{name}: "):
            getattr(sh.chains.FactoredCopyChain(**tables | {name: torch.full(shapes[name], bad)}), verb)()
    never = sh.chains.FactoredCopyChain(**tables | {"log_state": torch.full((3,), -INF)})
    with pytest.raises(ValueError, match=r"^log_\w+, log_\w+, log_\w+, log_\w+: "):
        getattr(never, verb)()


def test_a_method_that_is_an_array_is_refused_by_name():
    with pytest.raises(ValueError, match=r"^method: "):
        sh.LinearSSM(sh.LocalLevel()).fit(torch.zeros(9, 1), method=np.array([1.0, None], dtype=object))
    with pytest.raises(ValueError, match=r"^prior: "):
        sh.LinearSSM(sh.LocalLevel()).fit(torch.zeros(9, 1), prior=np.array(["own", "weak"]))


def test_a_probe_of_no_belief_is_refused_by_name():
    for belief in (torch.zeros(20, 2), torch.tensor([-1.0, 2.0]).expand(20, 2)):
        with pytest.raises(ValueError, match=r"^belief: "):
            sh.fit_probe(torch.randn(20, 2), belief, torch.zeros(20, 1))
