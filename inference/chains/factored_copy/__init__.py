"""Copy chains whose tables are products, of gates, states and likelihoods: the class is `chain.FactoredCopyChain`."""

from ...numerics.op import load_kernels

load_kernels(__name__)
