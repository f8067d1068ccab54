r"""Transition probabilities of a Markov chain in continuous time, $P(t) = e^{Qt}$, by uniformisation.

With a rate c that no exit exceeds, $R = I + Q/c$ has rows of probabilities, and

$$P(t) = \sum_n \frac{(ct)^n}{n!} e^{-ct}\, R^n$$

has no negative term, so small probabilities have all their digits too (Jensen 1953, *Markoff chains as an aid in the
study of Markoff processes*). All gaps share the powers of R. A long gap is halved until $ct \le 1$, and its table is
then squared as often. After each square rows are divided by their sums, which removes the rounding of entries near 1.

c and these sums are constants for derivatives, since P does not depend on them. So the derivative with respect to an
entry of Q, of entries that are independent of each other, is

$$\frac{\partial P_{ij}(t)}{\partial Q_{kl}} = \int_0^t P_{ik}(u)\, P_{lj}(t - u)\, du,$$

the integral that Van Loan's block exponential gives (1978, *Computing integrals involving the matrix exponential*).
Here too, no term is negative.
"""

import torch
from jaxtyping import Float
from torch import Tensor

TERMS = 20  # of the series, beyond the most jumps that a state can be away; the last one is below rounding
MOST = 1e300  # expected jumps in a gap


def transition_probabilities(
    generator: Float[Tensor, "*q K K"], gaps: Float[Tensor, "*#q U"]
) -> Float[Tensor, "*q U K K"]:
    """P(s after a gap | s before it) `[old, new]` for each gap, in float64.

    Arguments:
        generator: rates from state to state; the diagonal is minus the sum of the others of its row.
        gaps: at least 0.

    >>> transition_probabilities(torch.tensor([[-1.0, 1.0], [0.0, 0.0]]), torch.tensor([0.0, 0.6931471805599453]))
    tensor([[[1.0000, 0.0000],
             [0.0000, 1.0000]],
    <BLANKLINE>
            [[0.5000, 0.5000],
             [0.0000, 1.0000]]], dtype=torch.float64)
    """
    wide, n_states = generator.double(), generator.shape[-1]
    exits = wide.detach().diagonal(dim1=-2, dim2=-1).neg().flatten()
    fastest = torch.cat([exits, exits.new_full((1,), torch.finfo(wide.dtype).tiny)]).amax()  # without gaps too
    expected = (fastest * gaps.detach().double()).clamp_max(MOST)
    halvings = expected.clamp_min(1.0).log2().ceil().nan_to_num(0.0)  # rates that are not numbers have no table
    share = (expected * torch.exp2(-halvings)).unsqueeze(-1)
    orders = torch.arange(n_states + TERMS).to(share)
    weights = (torch.xlogy(orders, share) - share - torch.lgamma(orders + 1)).exp()
    unit = torch.eye(n_states).to(wide)
    uniform, powers = unit + wide / fastest, [unit.expand(wide.shape)]
    for _ in orders[1:]:
        powers.append(powers[-1] @ uniform)
    probs = (weights @ torch.stack(powers, -3).flatten(-2)).unflatten(-1, (n_states, n_states))
    for done in range(int(halvings.max()) if halvings.numel() else 0):
        longer = halvings > done
        places = longer.reshape(-1, longer.shape[-1]).any(0).nonzero().squeeze(-1)
        part = probs.index_select(-3, places)
        squared = torch.where(longer[..., places, None, None], _of_rows(part @ part), part)
        probs = probs.index_copy(probs.ndim - 3, places, squared)
    return _of_rows(probs)


def _of_rows(table: Float[Tensor, "*n K K"]) -> Float[Tensor, "*n K K"]:
    """The table with rows that sum to 1."""
    return table / table.detach().sum(-1, keepdim=True)
