"""Panels of long helps: options of one purpose stand together, in the same panel in every command."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["PANELS", "group_options"]

PANELS = {
    "Model and data": (
        "--model --dataset --job --trace --graph --profile --partition --parts --features --classes --hidden --layers "
        "--dropout --norm --width --blocks --length --batch --batch-size --microbatch-size --microbatches --fanouts "
        "--train-share --epochs --learning-rate --optimizer --clip --decay --label-noise --norm-sigma --mean-degree "
        "--p-in --mixing --tasks --classes-per-task --smallest-class"
    ),
    "Hosts and network": (
        "--hosts --ranks --ranks-per-host --workers --workers-per-host --servers --samplers --spares --nproc "
        "--cpus-per-rank --gpus-per-host --network --network-command --topology --link --links --bandwidth --speeds "
        "--node-rank --address --port --token --launcher --torchrun --timeout --start-timeout --progress-timeout "
        "--silence --lease --wait"
    ),
    "Search and measurement": (
        "--with --seed --seeds --time-limit --time-budget --simulations --iterations --passes --stop --patience "
        "--steps --warmup --turns --repeats --batches --samples --trials --restarts --minutes --tested --updates"
    ),
    "Output": "--out --json --html --job-out --log-dir --compat",
}
"""Options of each panel; the others stand in the first one, as they are the command's own."""
_FEW = 10
"""Most options that are read at a glance, without panels."""
_PANEL_OF = {option: panel for panel, options in PANELS.items() for option in options.split()}


def group_options(parameters: Iterable[Any]) -> None:
    """Assign the options of a command to panels if they are many."""
    options = [one for one in parameters if one.param_type_name == "option" and "--help" not in one.opts]
    if len(options) <= _FEW:
        return
    for one in options:
        if not one.rich_help_panel:
            one.rich_help_panel = next((_PANEL_OF[name] for name in one.opts if name in _PANEL_OF), None)
