"""Copy chains whose tables are products, of gates, states and likelihoods: the class is `chain.FactoredCopyChain`."""
