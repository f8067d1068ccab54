"""Models as estimators of scikit-learn, for pipelines, searches over parameters and cross-validation.

>>> import samplehold as sh
>>> sh.sklearn.HMM(n_states=3).get_params()["n_states"]
3

If there are several sequences, `groups` names the sequence of each row. See `docs/guides/scikit_learn.md`.
"""

from ..switching.estimator import HMM as HMM
from ..switching.estimator import SwitchingEstimator as SwitchingEstimator
