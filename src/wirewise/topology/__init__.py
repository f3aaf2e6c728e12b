"""Hosts, devices, switches and the links between them, as data: files, presets, the lab."""

from wirewise.topology.clusters import FABRICS, cluster, replace_fabric
from wirewise.topology.files import dumps, load, loads, save
from wirewise.topology.measured import from_pairs
from wirewise.topology.model import Device, Host, Link, Switch, Topology
from wirewise.topology.nccl_xml import ImportedTopology, from_nccl_xml
from wirewise.topology.paths import Path, link_between, neighbours, path_between
from wirewise.topology.presets import PRESETS, lab_hosts, preset
from wirewise.topology.processor import processor
from wirewise.topology.slurm_tree import from_slurm_tree
from wirewise.topology.smi import from_smi
from wirewise.topology.unequal import UnequalHost, random_unequal, unequal_hosts

__all__ = [
    "FABRICS",
    "PRESETS",
    "Device",
    "Host",
    "ImportedTopology",
    "Link",
    "Path",
    "Switch",
    "Topology",
    "UnequalHost",
    "cluster",
    "dumps",
    "from_nccl_xml",
    "from_pairs",
    "from_slurm_tree",
    "from_smi",
    "lab_hosts",
    "link_between",
    "load",
    "loads",
    "neighbours",
    "path_between",
    "preset",
    "processor",
    "random_unequal",
    "replace_fabric",
    "save",
    "unequal_hosts",
]
