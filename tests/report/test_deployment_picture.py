"""Plans of deployment as pictures."""

from __future__ import annotations

import msgspec

from tests.conformance.test_plan_laws import deployment
from wirewise.report.deployment_picture import deployment_chart, deployment_section


def test_every_device_of_a_group_has_a_bar():
    plan = deployment()
    chart = deployment_chart(plan)
    assert chart.count('data-tip="gpu') == sum(len(group.devices) for group in plan.groups)
    assert "gpu2: 6 of 8 rows of a" in chart and "gpu1: all rows of c" in chart
    assert "data-parallel 2" in deployment_section(plan)


def test_too_many_are_not_drawn():
    plan = deployment()
    many = msgspec.structs.replace(plan, groups=plan.groups * 3000)
    assert deployment_chart(many) == ""
    assert "too many bars" in deployment_section(many)
