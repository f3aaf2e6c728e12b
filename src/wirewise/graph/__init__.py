"""Graphs and their parts: datasets, partition, halo tables and the files of each rank. Needs no torch."""

from wirewise.graph.convert import from_ogb, from_pyg
from wirewise.graph.convert_files import convert
from wirewise.graph.data import SPLITS, GraphData, SparseRows
from wirewise.graph.datasets import DATASETS, load
from wirewise.graph.files import read_graph, write_graph
from wirewise.graph.generate import BlockModel, block_model, write_block_model
from wirewise.graph.ingest import write_mapped
from wirewise.graph.mapped import read_mapped
from wirewise.graph.memory import part_memory_bytes
from wirewise.graph.part import (
    Part,
    PartsMeta,
    edge_weights,
    edge_weights64,
    load_part,
    read_meta,
    save_parts,
    split_graph,
)
from wirewise.graph.partition import (
    PARTITIONERS,
    MethodChoice,
    PartitionQuality,
    choose_method,
    measure,
    partition,
)

__all__ = [
    "DATASETS",
    "PARTITIONERS",
    "SPLITS",
    "BlockModel",
    "GraphData",
    "MethodChoice",
    "Part",
    "PartitionQuality",
    "PartsMeta",
    "SparseRows",
    "block_model",
    "choose_method",
    "convert",
    "edge_weights",
    "edge_weights64",
    "from_ogb",
    "from_pyg",
    "load",
    "load_part",
    "measure",
    "part_memory_bytes",
    "partition",
    "read_graph",
    "read_mapped",
    "read_meta",
    "save_parts",
    "split_graph",
    "write_block_model",
    "write_graph",
    "write_mapped",
]
