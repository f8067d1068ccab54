r"""The evidence of series of one feature, under R parameters that all series share.

`LinearGaussianChain` carries factors of covariances, and no digits are lost. A search needs many evaluations and fewer
digits, and its kernel (`native/one_series.h`) carries the covariances themselves. The plain form is the chain.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..linear_gaussian import op
from ..linear_gaussian.parameters import read


@torch.no_grad()
def evidence(
    x: Float[Tensor, "B T"],
    transition: Float[Tensor, "R L L"],
    state_noise: Float[Tensor, "R L"],
    emission: Float[Tensor, "C S L"],
    observation_noise: Float[Tensor, "R"],
    initial: Float[Tensor, "R L L"],
    diffuse: Bool[Tensor, "L"],
) -> Float[Tensor, "R B"]:
    """log p(x) of each series; -inf if it is impossible, or does not determine the diffuse start.

    Arguments:
        x: NaN where missing, and after the end of a series.
        state_noise: variances.
        emission: C is 1 or B, S is 1 or T.
        initial: covariances of the first state, 0 for diffuse entries.
    """
    tables = {
        "transition": transition.unsqueeze(1),
        "state_noise": torch.diag_embed(state_noise).unsqueeze(1),
        "emission": emission[None, :, :, None, :],
        "observation_noise": observation_noise[:, None, None, None],
        "initial_mean": None,
        "initial_covariance": initial.unsqueeze(1),
        "diffuse": diffuse,
        "transition_offset": None,
        "emission_offset": None,
        "lengths": None,
    }
    total, fault = op.evidence(*read(x[None, :, :, None], tables).tables)
    return torch.where(fault < 0, total, -torch.inf).nan_to_num(-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
