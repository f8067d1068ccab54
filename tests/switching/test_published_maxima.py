"""Maximum likelihoods of published data sets, from packages of R and from code apart from this project.

Each is reached by the default search in every one of three seeds. The data are fetched by `tests/data/fetch.py`.
"""

import numpy as np
import pytest
import samplehold as sh
import torch
from data.fetch import how_to_get, table

pytestmark = [pytest.mark.peer, pytest.mark.slow]
SEEDS = (0, 1, 2)


def column(name: str, which: str) -> np.ndarray:
    data = table(name)
    if data is None:
        pytest.skip(how_to_get(name))
    return np.array([float(value or "nan") for value in data[which]])


def coal() -> np.ndarray:
    """Disasters in each year from 1851 to 1962."""
    return np.bincount(np.floor(column("coal", "date")).astype(int) - 1851, minlength=112).astype(float)


def reached(model: sh.SwitchingSSM, x: np.ndarray | list[np.ndarray], maximum: float, **given: object) -> None:
    for seed in SEEDS:
        fit = model.fit(x, prior=None, seed=seed, progress=False, **given)  # pyright: ignore[reportArgumentType]
        assert fit.loglik == pytest.approx(maximum, abs=0.01), seed


def markov(n_states: int, start: str = "free") -> sh.Markov:
    return sh.Markov(n_states, initial=start)


@pytest.mark.parametrize(
    ("n_states", "start", "maximum"),
    [
        (1, "free", -203.57017),
        (2, "free", -171.89363),
        (2, "stationary", -173.55830),
        (3, "free", -169.04381),
        (3, "stationary", -170.72323),
    ],
)
def test_coal_disasters_by_year(n_states, start, maximum):
    reached(sh.SwitchingSSM(markov(n_states, start), sh.Poisson(1)), coal(), maximum)


@pytest.mark.parametrize(
    ("emission", "maximum"),
    [(sh.ZeroInflated(sh.Poisson(1)), -172.95304), (sh.NegativeBinomial(1), -173.30532)],
)
def test_coal_disasters_of_other_families(emission, maximum):
    reached(sh.SwitchingSSM(markov(2, "stationary"), emission), coal(), maximum)


@pytest.mark.parametrize(("n_states", "maximum"), [(2, -1092.39947), (3, -1050.32625)])
def test_waiting_times_of_a_geyser(n_states, maximum):
    reached(sh.SwitchingSSM(markov(n_states), sh.Normal(1)), column("geyser", "waiting"), maximum)


@pytest.mark.parametrize(("n_states", "maximum"), [(2, 9052.78736), (3, 9120.84216)])
def test_daily_returns(n_states, maximum):
    reached(sh.SwitchingSSM(markov(n_states), sh.Normal(1)), column("SP500", "r500"), maximum)


@pytest.mark.parametrize(("n_states", "maximum"), [(1, -305.330940), (2, -88.730584), (3, -58.385521), (4, -36.623242)])
def test_response_times_as_one_series(n_states, maximum):
    reached(sh.SwitchingSSM(markov(n_states), sh.Normal(1)), column("speed", "rt"), maximum)


def test_response_times_with_transitions_by_the_scaled_payoff():
    x, payoff = column("speed", "rt"), column("speed", "Pacc")
    inputs = torch.from_numpy((payoff - payoff.mean()) / payoff.std(ddof=1)).unsqueeze(-1)
    # inputs drive the move into their step; those of the package drive the move out of it
    reached(sh.SwitchingSSM(sh.Markov(2, inputs=1), sh.Normal(1)), x, -44.199479, inputs=inputs.roll(1, 0))


@pytest.mark.parametrize(
    ("n_states", "start", "maximum"),
    [
        (1, "free", -232.15416),
        (2, "free", -211.07293),
        (2, "stationary", -211.68208),
        (3, "free", -204.80002),
        (3, "stationary", -205.55213),
    ],
)
def test_epileptic_seizures(n_states, start, maximum):
    reached(sh.SwitchingSSM(markov(n_states, start), sh.Poisson(1)), column("seizures", "count"), maximum)


def test_epileptic_seizures_with_too_many_zeros():
    model = sh.SwitchingSSM(markov(2, "stationary"), sh.ZeroInflated(sh.Poisson(1)))
    reached(model, column("seizures", "count"), -210.24365)


def tracks(name: str) -> list[np.ndarray]:
    """The steps and turning angles of each animal."""
    animals, steps, angles = (column(name, which) for which in ("ID", "step", "angle"))
    both = np.stack([steps, angles], -1)
    return [both[animals == animal] for animal in dict.fromkeys(animals)]


@pytest.mark.parametrize(
    ("name", "step", "maximum"),
    [("elk", sh.ZeroInflated(sh.Gamma()), -1892.97446), ("haggis", sh.Gamma(), -3462.48734)],
)
def test_tracks_of_animals(name, step, maximum):
    reached(sh.SwitchingSSM(markov(2), sh.Joint(step=step, angle=sh.VonMises())), tracks(name), maximum)
