"""Neighbour sampling for mini-batch training, deterministic for any number of threads. Needs no torch."""

from wirewise.graph.sampling.sampler import SEMANTICS, Batch, Layer, NeighborSampler, seed_batches

__all__ = ["SEMANTICS", "Batch", "Layer", "NeighborSampler", "seed_batches"]
