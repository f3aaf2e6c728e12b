"""Picture of a deployment plan: batch rows of each op group on each device."""

from __future__ import annotations

from wirewise.plans import DeploymentPlan
from wirewise.report import figures, shell, svg

__all__ = ["deployment_chart", "deployment_section"]

_WIDTH, _HIGH, _HEAD, _NOTE = 1000.0, 22.0, 24.0, 90.0
"""Pixels of the picture, of an op group, of the names of devices, and of what becomes of gradients."""
_MOST = 40_000
"""Cells that are drawn at most."""
_COLOURS = {"allreduce": "c0", "ps": "c1", "duplicate": "c2", "mp": "c3"}


def deployment_chart(plan: DeploymentPlan) -> str:
    """Draw a row per op group and a column per device, with bars for fractions of the batch; empty if too many."""
    if len(plan.groups) * plan.world_size > _MOST:
        return ""
    names = [g.ops[0] if len(g.ops) == 1 else f"{g.ops[0]} to {g.ops[-1]}" for g in plan.groups]
    left = 20 + max(svg.text_width(name, 12.5) for name in names)
    wide = (_WIDTH - left - _NOTE) / plan.world_size
    parts = [
        svg.text(left + (rank + 0.5) * wide, _HEAD - 8, device.name, "tick", "middle")
        for rank, device in enumerate(plan.devices)
        if svg.text_width(device.name, 12.5) < wide
    ]
    for number, (group, name) in enumerate(zip(plan.groups, names, strict=True)):
        top = _HEAD + number * _HIGH
        parts.append(svg.text(left - 10, top + _HIGH / 2 + 4, name, "label", "end"))
        parts.append(svg.text(_WIDTH - _NOTE + 8, top + _HIGH / 2 + 4, group.communication, "label", "start"))
        parts.append(svg.rect(left, top + 2, wide * plan.world_size, _HIGH - 4, "lane"))
        for rank, rows in zip(group.devices, group.rows or (plan.batch,) * len(group.devices), strict=True):
            tip = f"{plan.devices[rank].name}: {rows} of {plan.batch} rows of {', '.join(group.ops)}"
            if group.communication == "mp":
                own = [op for op, owner in zip(group.ops, group.owners, strict=True) if owner == rank]
                tip = f"{plan.devices[rank].name}: all rows of {', '.join(own)}"
            bar = f"bar {_COLOURS[group.communication]}"
            length = max((wide - 4) * rows / plan.batch, 1.0)
            parts.append(svg.rect(left + rank * wide + 2, top + 3, length, _HIGH - 6, bar, tip))
    high = _HEAD + len(plan.groups) * _HIGH + 6
    return svg.document(_WIDTH, high, "Rows of op groups on devices", "".join(parts))


def deployment_section(plan: DeploymentPlan) -> str:
    """HTML section with the devices and rows of each op group."""
    step, baseline = figures.seconds(plan.predicted_step_s), figures.seconds(plan.baseline_step_s)
    lead = (
        f"A bar is a device's share of the {plan.batch} rows of an op group, coloured by what becomes of gradients. A "
        f"step takes {step}, data-parallel {baseline}; both are simulated."
    )
    chart = deployment_chart(plan)
    body = shell.figure(chart) if chart else "<p>There are too many bars to draw.</p>"
    return shell.section("Op groups on devices", lead, body)
