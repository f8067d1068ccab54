"""Copy chains, whose state is drawn afresh or held at every step: the class is `chain.CopyChain`."""

from ...numerics.op import load_kernels

load_kernels(__name__)
