"""Copy chains, whose state is drawn afresh or held at every step: the class is `chain.CopyChain`."""
