"""Rhino: shardings and stages of any model, by integer programmes over the operators of its training step.

After Zhang et al., "Rhino: a distributed tensor program compiler for automatic parallelization" (2023).
"""
