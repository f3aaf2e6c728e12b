from html import unescape

import pytest

from tests.papers.examples import HOSTILE
from wirewise.plans import BitWidthPlan, ChannelBits
from wirewise.report import plan_html
from wirewise.report.plan import channel_tables

PLAN = BitWidthPlan(
    world_size=2,
    planner=HOSTILE,
    channels=(
        ChannelBits(exchange="forward1", sender=0, receiver=1, width=16, bits=bytes([2, 2, 8])),
        ChannelBits(exchange="backward1", sender=1, receiver=0, width=16, bits=bytes([4, 4])),
    ),
    predicted_s={"forward1": 0.0125},
)


def test_tables_name_exchanges_and_leave_out_empty_columns() -> None:
    text = unescape(plan_html(PLAN))
    for words in ("forward1", "backward1", "12.500", "mean bits", HOSTILE):
        assert words in text
    # No message has 16 or 32 bits, and no sigma is known.
    for words in ("16 bit", "32 bit", "sigma"):
        assert words not in text


def test_html_shows_every_figure_and_escapes() -> None:
    text = plan_html(PLAN)
    for cell in [c for row in PLAN.table()[1] for c in row if c not in {"0", "-"}]:
        assert f">{cell}</t" in text
    assert "<script>" not in text and "&lt;script&gt;" in text


def test_channels_show_their_mean_bits() -> None:
    (forward, _, there), (backward, _, back) = channel_tables(PLAN)
    assert forward.startswith("forward1") and there == [["from 0", "", "4.00"], ["from 1", "", ""]]
    assert backward.startswith("backward1") and back == [["from 0", "", ""], ["from 1", "4.00", ""]]
    assert ">4.00</td>" in plan_html(PLAN) and "from 1" in plan_html(PLAN)


def test_many_ranks_get_no_grid() -> None:
    plan = BitWidthPlan(world_size=17, planner="uniform", channels=PLAN.channels)
    assert channel_tables(plan) == [] and "by channel" not in plan_html(plan)


@pytest.mark.parametrize("bits", [None, b"", bytes([2, 8])])
def test_small_plans_are_drawn(bits: bytes | None) -> None:
    channel = ChannelBits(exchange="forward1", sender=0, receiver=1, width=16, bits=bits or b"")
    plan = BitWidthPlan(world_size=2, planner="uniform", channels=() if bits is None else (channel,))
    assert "uniform" in plan_html(plan) and ("forward1" in plan_html(plan)) == (bits is not None)
