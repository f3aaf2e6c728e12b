"""Mini-batch training of graph neural networks over machines that hold parts of the features."""

from wirewise.runtime.mini_batch.batch import STAGES, MiniBatch
from wirewise.runtime.mini_batch.device import DeviceStore
from wirewise.runtime.mini_batch.fetching import ROW_FORMATS, WIRE_BITS, Fetcher
from wirewise.runtime.mini_batch.loader import BatchLoader
from wirewise.runtime.mini_batch.store import RowStore
from wirewise.runtime.mini_batch.topology import PartitionedSampler, own_edges

__all__ = [
    "ROW_FORMATS",
    "STAGES",
    "WIRE_BITS",
    "BatchLoader",
    "DeviceStore",
    "Fetcher",
    "MiniBatch",
    "PartitionedSampler",
    "RowStore",
    "own_edges",
]
