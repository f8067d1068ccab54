"""Cholesky factors of small matrices.

torch clears the upper triangles of a batch of them on several threads, however small it is: a microsecond's work, for
which threads have to wait for each other, and beside other programs they wait for milliseconds. numpy does not.
"""

import numpy as np
import torch
from torch import Tensor

from .op import Variants, differentiated

SMALL = 2**12  # numbers in a batch whose triangles are not worth a second thread

cholesky = Variants(torch.linalg.cholesky)
"""The lower factors `[*b, D, D]` of positive definite matrices; `torch.linalg.LinAlgError` where one is not."""


@cholesky.kernel("cpu")
def _by_numpy(matrix: Tensor) -> Tensor:
    if matrix.numel() > SMALL or differentiated(matrix):
        return torch.linalg.cholesky(matrix)
    try:
        chol = np.linalg.cholesky(matrix.detach().numpy())
    except np.linalg.LinAlgError:
        return torch.linalg.cholesky(matrix)  # which says what is wrong with which
    return torch.from_numpy(chol) if np.isfinite(chol.sum()) else torch.linalg.cholesky(matrix)
