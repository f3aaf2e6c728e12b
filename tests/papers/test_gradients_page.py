"""The page about plans of compressed gradients says what was predicted, measured and sent."""

import re

import msgspec

from wirewise.report.figures import MISSING
from wirewise_papers.cupcake.page import MOST_GROUPS, gradients_html, groups_chart
from wirewise_papers.cupcake.records import CompressionRun, GroupRecord, PlanRecord


def group(first, codec="efsign", measured=(0.002, 0.03, 0.001)):
    return GroupRecord(
        first=first,
        last=first,
        elements=1_000,
        codec=codec,
        scheme="all_reduce" if codec == "none" else "all_gather",
        decode="inline",
        payload_bytes=400,
        predicted_s=(0.001, 0.02, 0.001),
        measured_s=measured,
    )


def plan(step_s, groups, **more):
    return PlanRecord(
        step_s=step_s,
        quartiles_s=(0.9 * step_s, 1.1 * step_s),
        predicted_step_s=1.1 * step_s,
        error=0.1,
        lower_bound_s=0.2,
        payload_bytes=400 * len(groups),
        groups=groups,
        **({"bytes_sent": 420 * len(groups)} | more),
    )


def record(**plans):
    return CompressionRun(
        model="<net>",
        emulated="compute is slept",
        hosts=4,
        link="100mbit",
        codec="auto",
        tensors=2,
        elements=2_000,
        forward_s=0.05,
        backward_s=0.1,
        steps=14,
        plans=plans,
        fastest=min(plans, key=lambda name: plans[name].step_s),
    )


BOTH = record(cupcake=plan(0.25, [group(0), group(1)]), plain=plan(0.5, [group(0, "none")]))


def test_the_page_names_the_fastest_plan_and_its_gain():
    page = gradients_html(BOTH)
    assert (
        "cupcake is the fastest of 2 plans: 0.250 s a step, 2.00\N{MULTIPLICATION SIGN} as fast"
        in page.replace("\N{NO-BREAK SPACE}", " ")
    )
    assert "&lt;net&gt;" in page and "<net>" not in page
    assert "+5.0 %" in page and "http" not in re.sub(r"http://www\.w3\.org/\S+", "", page)


def test_without_an_uncompressed_plan_nothing_is_compared():
    page = gradients_html(record(cupcake=plan(0.25, [group(0)])))
    assert "as fast as" not in page and "no such plan was measured" in page
    assert "cupcake takes 0.250 s a step." in page.replace("\N{NO-BREAK SPACE}", " ")
    assert "it compresses nothing" in gradients_html(record(plain=plan(0.25, [group(0, "none")])))


def test_where_the_kernel_did_not_count_the_page_says_so():
    page = gradients_html(record(cupcake=plan(0.25, [group(0)], bytes_sent=None)))
    assert "+5.0 %" not in page
    (row,) = re.findall(
        r"<tr>(?:(?!<tr>).)*efsign(?:(?!<tr>).)*</tr>", page.partition("<h2>Steps")[2], re.DOTALL
    )
    assert row.count(f">{MISSING}<") == 2


def test_bars_are_as_long_as_their_times():
    chart = groups_chart([group(0)], "label")
    widths = [float(w) for w in re.findall(r'width="([\d.]+)"', chart)]
    assert len(widths) == 6
    assert widths[4] / widths[1] == 1.5 or abs(widths[4] / widths[1] - 1.5) < 1e-3
    many = groups_chart([group(i) for i in range(100)], "label")
    assert many.count(">measured<") == MOST_GROUPS
    assert groups_chart([group(0, measured=None)], "label") == ""


def test_a_record_survives_json():
    assert msgspec.json.decode(msgspec.json.encode(BOTH), type=CompressionRun) == BOTH
