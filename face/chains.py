"""Posteriors over paths of a hidden state, from tables of weights: exact filters, smoothers, best paths, samples.

>>> import samplehold as sh
>>> import torch
>>> chain = sh.chains.MarkovChain(torch.zeros(2), torch.zeros(2, 2), torch.zeros(5, 2))
>>> chain.smooth().state.shape
torch.Size([5, 2])

Every model makes its own chain; these are for tables that come from elsewhere.
"""

from ..inference.chains.copy.chain import CopyChain as CopyChain
from ..inference.chains.factored_copy.chain import FactoredCopyChain as FactoredCopyChain
from ..inference.chains.linear_gaussian.chain import LinearGaussianChain as LinearGaussianChain
from ..inference.chains.markov.chain import MarkovChain as MarkovChain
from ..inference.chains.segment.chain import SegmentChain as SegmentChain
from ..inference.chains.segment.records import Block as Block
from ..inference.chains.segment.stream import SegmentStream as SegmentStream
from ..inference.chains.semi_markov.chain import SemiMarkovChain as SemiMarkovChain
