"""What networks keep of the memory of moving states."""

import cmath
import math
from dataclasses import replace

import input_driven
import pytest
import torch
from input_driven import CHAINS, QUICK, K, chain_of, member, second_eigenvalue, trained
from torch.testing import assert_close

pytestmark = [pytest.mark.cpu("the study makes its networks there"), pytest.mark.usefixtures("one_thread")]


@pytest.mark.parametrize("name", CHAINS)
def test_predictions_without_memory_are_those_of_the_filter_at_its_first_two_steps(name):
    model = chain_of(name, 3)
    marginal, present = input_driven.without_memory(model)
    pairs = torch.cartesian_prod(*2 * [torch.arange(K, dtype=torch.float64)])
    log_prob = model.filter(pairs.unsqueeze(-1)).log_increment.unflatten(0, (K, K))
    assert_close(log_prob[:, 0, 0], marginal, rtol=0, atol=1e-12)
    assert_close(log_prob[..., 1], present, rtol=0, atol=1e-12)
    table = CHAINS[name][0](3)
    assert_close(model.values["initial_probs"] @ table, model.values["initial_probs"], rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["", "hazy "])
def test_the_cycle_is_the_copy_chain_in_coordinates_that_turn(name):
    copies, cycle = chain_of(name + "copies", 0), chain_of(name + "cycle", 0)
    x = copies.simulate(100, (3,), seed=0).x
    moved = (x + torch.arange(100.0, dtype=torch.float64)[:, None]) % K
    assert_close(cycle.filter(moved).log_increment, copies.filter(x).log_increment, rtol=0, atol=1e-12)
    assert second_eigenvalue(CHAINS["cycle"][0](0)) == pytest.approx(0.9 * cmath.exp(2j * math.pi / 3), abs=1e-12)


def test_networks_trained_as_one_stack_are_those_trained_alone():
    plan = replace(QUICK, pool=32, judged=(4, 16))
    members = [member(name, seed, plan) for name, seed in (("copies", 0), ("cycle", 1))]
    together = trained(("MinGRU", 4, 2), members, (3, 5))[0]
    alone = [trained(("MinGRU", 4, 2), [one], (3, 5))[0] for one in members]
    assert_close(together, [[scores[k][0] for scores in alone] for k in range(2)], rtol=1e-5, atol=0)
    assert together[0][0] != together[0][1]


@pytest.mark.slow
def test_a_min_gru_keeps_copies_but_not_a_cycle_and_a_rotation_keeps_both():
    plan = replace(QUICK, pool=1024)
    members = [member(name, 0, plan) for name in ("copies", "cycle")]
    kept = {}
    for name in ("MinGRU", "RotatingGRU"):
        judged = trained((name, 16, 1), members, (50, 200))[0]
        kept[name] = [one.row(score)["past kept"] for one, score in zip(members, judged[1], strict=True)]
    assert kept["MinGRU"][0] > 0.7
    assert kept["MinGRU"][1] < 0.4
    assert min(kept["RotatingGRU"]) > 0.7
