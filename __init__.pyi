# The public face: each name once, with its home. It is read by type checkers, and by `__init__.py` to find the names.

from .inference.chains.copy.chain import CopyChain as CopyChain
from .inference.chains.markov.chain import MarkovChain as MarkovChain
from .inference.scans.linear.op import lerp_scan as lerp_scan
from .inference.scans.linear.op import linear_scan as linear_scan
from .models.bridge.comparison import Comparison as Comparison
from .models.bridge.correspondence import as_rnn as as_rnn
from .models.bridge.correspondence import as_ssm as as_ssm
from .models.bridge.correspondence import compare as compare
from .models.networks.minimal import MinGRU as MinGRU
from .models.networks.minimal import MinLSTM as MinLSTM
from .models.networks.qrnn import QRNN as QRNN
from .models.networks.stack import NondeterministicStackRNN as NondeterministicStackRNN
from .models.networks.stack import StratificationStackRNN as StratificationStackRNN
from .models.networks.stack import SuperpositionStackRNN as SuperpositionStackRNN
from .models.networks.wrapped import GRU as GRU
from .models.networks.wrapped import LSTM as LSTM
from .models.networks.wrapped import Elman as Elman
from .switching.coupled.factorial import FactorialSSM as FactorialSSM
from .switching.coupled.layered import LayeredSSM as LayeredSSM
from .switching.dynamics.copy import Copy as Copy
from .switching.dynamics.markov import Markov as Markov
from .switching.emissions.contract import ConjugateEmission as ConjugateEmission
from .switching.emissions.contract import Emission as Emission
from .switching.emissions.discrete import Bernoulli as Bernoulli
from .switching.emissions.discrete import Categorical as Categorical
from .switching.emissions.discrete import Poisson as Poisson
from .switching.emissions.gated import Gated as Gated
from .switching.emissions.multivariate_normal import MultivariateNormal as MultivariateNormal
from .switching.emissions.normal import Normal as Normal
from .switching.filter_vmp import filter_vmp as filter_vmp
from .switching.fitting.fit import Fit as Fit
from .switching.forecast import Forecast as Forecast
from .switching.model import SwitchingSSM as SwitchingSSM
from .switching.parameters import Parameter as Parameter
from .switching.stacks.automaton import PushdownAutomaton as PushdownAutomaton
from .switching.stacks.mixture import StackMixture as StackMixture
from .switching.stacks.program import stack_program as stack_program

__version__: str
