"""A model of two convolutions."""

from __future__ import annotations

import torch
from torch import nn

from tests.integrations.pyg_models import Two, g


def a_model() -> nn.Module:
    torch.manual_seed(1)
    return Two(g.SAGEConv)
