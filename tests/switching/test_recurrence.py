"""Regimes that the states choose: the bound of the logistic regressions, and fits that learn them."""

import pytest
import samplehold as sh
import torch
from samplehold.inference.families import Gaussian, GaussianTables, MarkovTables
from samplehold.switching.slds import fit as fits
from samplehold.switching.slds.joint import Simulated
from samplehold.switching.slds.recurrence import recurrence

N_STEPS, K, L = 7, 3, 2


@pytest.fixture(scope="module")
def drawn() -> Simulated:
    """A latent that rises until it is near 1 and then falls until it is near -1."""
    one = torch.ones(2, 1, 1)
    model = sh.SwitchingLinearSSM(2, 1, 2, recurrent=True, common_emission=True).with_values(
        initial_probs=[0.5, 0.5],
        recurrence=[[-4.0]],
        recurrence_offset=[[4.0], [-4.0]],
        initial_mean=[0.0],
        initial_covariance=[[0.25]],
        transition=0.9 * one,
        transition_offset=[[0.15], [-0.15]],
        state_noise=0.01 * one,
        emission=[[1.0], [0.5]],
        emission_offset=[0.0, 0.0],
        observation_noise=[0.05, 0.05],
    )
    return model.simulate(300, seed=0)


def test_weights_of_zero_have_the_curvature_of_the_logistic() -> None:
    """-log 2 cosh(u / 2) is -log 2 - u^2 / 8 near 0, so a point at weights of 0 gets this message too."""
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    mean, pairs = uniform(1, 1, N_STEPS, L) - 0.5, uniform(1, N_STEPS - 1, K, K)
    square = mean.unsqueeze(-1) * mean.unsqueeze(-2) + 0.1 * torch.eye(L, dtype=torch.float64)
    paths = GaussianTables(mean, square, torch.zeros(1, 1, N_STEPS - 1, L, L, dtype=torch.float64))
    moved = MarkovTables(pairs[:, 0, 0], pairs, uniform(1, N_STEPS, K))
    zero = Gaussian().statistics(torch.zeros(1, K - 1, L + K, dtype=torch.float64))
    factor = recurrence("recurrence", "chain", "switch", torch.ones(N_STEPS, dtype=torch.bool))
    message = factor.message("recurrence", paths, zero, moved)

    design = torch.zeros(N_STEPS - 1, K, L + K, L + K, dtype=torch.float64)  # E (s, e_j)(s, e_j)^T
    for j in range(K):
        design[:, j, :L, :L] = square[0, 0, :-1]
        design[:, j, L + j, L + j] = 1
        design[:, j, :L, L + j] = design[:, j, L + j, :L] = mean[0, 0, :-1]
    for stick in range(K - 1):
        reached = pairs[0, ..., stick:].sum(-1)
        expected = -torch.einsum("tj,tjab->ab", reached, design) / 8
        assert torch.allclose(message[0, stick, L + K :], expected.flatten(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_states_that_choose_the_regimes_raise_the_bound(drawn: Simulated, method: str) -> None:
    ends = []
    for recurrent in (True, False):
        model = sh.SwitchingLinearSSM(2, 1, 2, recurrent=recurrent, common_emission=True)
        fit = model.fit(drawn.x, method, start=drawn.path, restarts=1, max_steps=16, progress=False)
        ends.append(float(fit.objective[-1]))
    assert ends[0] > ends[1] + 5


def test_annealing_leaves_the_regimes_of_every_start(drawn: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts with the right labels, from three temperatures: none ends far below the others."""

    def true_labels(k: int, inside: object, path: object, kinds: tuple[str, ...], seed: int) -> torch.Tensor:
        return drawn.path.expand(len(kinds), -1)

    monkeypatch.setattr(fits, "labels_of", true_labels)
    model = sh.SwitchingLinearSSM(2, 1, 2, recurrent=True, common_emission=True)
    fit = model.fit(drawn.x, "vmp", restarts=1, max_steps=8, progress=False)
    ends = fit.restarts.objective
    assert ends.min() > ends.max() - 20
