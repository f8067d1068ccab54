"""Linear Gaussian chains, whose state is a real vector: the class is `chain.LinearGaussianChain`."""

from ...numerics.op import load_kernels

load_kernels(__name__)
