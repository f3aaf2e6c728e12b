"""What commands at the top are asked for."""

from __future__ import annotations

from typing import get_args

from wirewise.cli.programs import FORMATS
from wirewise.cli.requests import Check, Export
from wirewise.collective.exporters import msccl
from wirewise.cost import nccl
from wirewise.options import fields_of


def test_words_of_options_are_those_of_formats():
    words = {field.name: field.words for record in (Check, Export) for field in fields_of(record)}
    assert words["dialect"] == get_args(msccl.Dialect) and words["protocol"] == get_args(msccl.Protocol)
    assert words["gpu"] == get_args(nccl.Gpu) and words["to"] == tuple(FORMATS)
