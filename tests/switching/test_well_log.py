"""Clear changes of a simulated well log are found, and spikes are taken for changes unless they are missing."""

from itertools import pairwise

import numpy as np
import pytest
from benchmarks.replications import well_log
from samplehold.switching.judging.changes import f1

N_STEPS, WITHIN, CLEAR = 1200, 5, 15


def clear_changes(log: well_log.WellLog) -> list[int]:
    """Changes by four standard deviations of the noise, with 15 steps on both sides. A place six steps away has 48 nats
    less, with a standard deviation of 10, so that it is more probable has a probability of about 1e-6."""
    ends = [0, *log.changes, N_STEPS]
    lengths = [b - a for a, b in pairwise(ends)]
    far = [abs(log.level[c] - log.level[c - 1]) > 4 * well_log.NOISE for c in log.changes]
    return [
        change
        for change, before, after, jump in zip(log.changes, lengths, lengths[1:], far, strict=False)
        if jump and min(before, after) >= CLEAR
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_clear_changes_of_a_well_log_are_found_and_spikes_are_not_if_they_are_missing(seed):
    log = well_log.simulated(np.random.default_rng(seed), N_STEPS)
    found = well_log.segments(well_log.without_spikes(log.x), restarts=1)
    clear = clear_changes(log)
    assert clear
    assert all(min(abs(change - one) for one in found) <= WITHIN for change in clear)
    with_spikes = well_log.segments(log.x, restarts=1)
    assert len(with_spikes) > len(found)
    assert f1([log.changes], with_spikes, N_STEPS) < f1([log.changes], found, N_STEPS)
