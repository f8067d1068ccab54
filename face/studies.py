"""What is measured on networks: forgetting, stability, information about gates, the price of exactness.

>>> import samplehold as sh
>>> sh.studies.stability(sh.stable(sh.GRU(2, 3)), input_bound=1.0).stable
True
"""

from ..models.bridge.input_gate import InputGateBound as InputGateBound
from ..models.bridge.input_gate import input_gate_bound as input_gate_bound
from ..models.bridge.input_gate import input_gate_updates as input_gate_updates
from ..models.studies.forgetting import forgetting as forgetting
from ..models.studies.forgetting import truncation_bound as truncation_bound
from ..models.studies.gradient_memory import GradientMemory as GradientMemory
from ..models.studies.gradient_memory import gradient_memory as gradient_memory
from ..models.studies.information import InformationSweep as InformationSweep
from ..models.studies.information import information_sweep as information_sweep
from ..models.studies.loglinear import CategoricalClasses as CategoricalClasses
from ..models.studies.loglinear import GaussianClasses as GaussianClasses
from ..models.studies.loglinear import SoftmaxRegression as SoftmaxRegression
from ..models.studies.next_token import NextTokenPredictor as NextTokenPredictor
from ..models.studies.next_token import PriceOfExactness as PriceOfExactness
from ..models.studies.next_token import price_of_exactness as price_of_exactness
from ..models.studies.next_token import train_next_token as train_next_token
from ..models.studies.past_in_gates import PastInGates as PastInGates
from ..models.studies.past_in_gates import past_in_gates as past_in_gates
from ..models.studies.stability import Stability as Stability
from ..models.studies.stability import stability as stability
from ..models.studies.stability import stabilize as stabilize
from ..models.studies.windows import Forgetting as Forgetting
