import pytest
from rich.console import Console

from tests.report.examples import HOSTILE
from wirewise.plans import BitWidthPlan, ChannelBits
from wirewise.report import draw_plan, plan_html

PLAN = BitWidthPlan(
    world_size=2,
    planner=HOSTILE,
    channels=(
        ChannelBits(exchange="forward1", sender=0, receiver=1, width=16, bits=bytes([2, 2, 8])),
        ChannelBits(exchange="backward1", sender=1, receiver=0, width=16, bits=bytes([4, 4])),
    ),
    predicted_s={"forward1": 0.0125},
)


def test_table_shows_every_cell() -> None:
    console = Console(width=160, record=True, markup=False)
    with console.capture() as shown:
        console.print(draw_plan(PLAN))
    titles, rows = PLAN.table()
    for cell in [*titles, *(c for row in rows for c in row)]:
        assert cell in shown.get()
    assert "12.500" in shown.get() and HOSTILE in shown.get()


def test_html_shows_every_cell_and_escapes() -> None:
    text = plan_html(PLAN)
    titles, rows = PLAN.table()
    for cell in [*titles, *(c for row in rows for c in row)]:
        assert f">{cell}</t" in text
    assert "<script>" not in text and "&lt;script&gt;" in text


@pytest.mark.parametrize("channels", [(), PLAN.channels[:1]])
def test_small_plans_are_drawn(channels: tuple[ChannelBits, ...]) -> None:
    plan = BitWidthPlan(world_size=2, planner="uniform", channels=channels)
    assert plan_html(plan).count("<tr>") == 1 + len(channels)
    assert draw_plan(plan).row_count == len(channels)
