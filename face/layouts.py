"""Weights of recurrent layers in the layouts of torch, Keras, flax and TensorFlow 1.

>>> import samplehold as sh
>>> weights = sh.layouts.from_torch(sh.GRU(2, 3))
>>> len(sh.layouts.to_keras(weights))
3
"""

from ..models.networks.layouts import RecurrentWeights as RecurrentWeights
from ..models.networks.layouts import from_flax as from_flax
from ..models.networks.layouts import from_joined as from_joined
from ..models.networks.layouts import from_keras as from_keras
from ..models.networks.layouts import from_tf1 as from_tf1
from ..models.networks.layouts import from_torch as from_torch
from ..models.networks.layouts import to_flax as to_flax
from ..models.networks.layouts import to_joined as to_joined
from ..models.networks.layouts import to_keras as to_keras
from ..models.networks.layouts import to_tf1 as to_tf1
