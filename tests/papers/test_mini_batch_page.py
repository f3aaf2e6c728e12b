"""The page about mini-batches says what is fastest, what binds, and what was sent."""

import re

import msgspec
import pytest

from wirewise_papers.salientpp.page import mini_batch_html
from wirewise_papers.salientpp.records import MiniBatchRecord, MiniBatchRun

STAGES = {"sample": 0.001, "ids": 0.01, "slice": 0.002, "rows": 0.4, "assemble": 0.01, "train": 0.03}


def record(epoch_s, **more):
    settings = {
        "epochs_s": (epoch_s,),
        "remote_rows": 37_655,
        "bytes_sent": 150_000_000,
        "bytes_predicted": 120_000_000,
        "gradient_bytes": 2_000_000,
        "hit_rate": 0.0,
        "accuracy": 0.82,
        "loss": 1.0,
        "stage_s": STAGES,
        "link_s": 4.0,
        "cpu_s": 0.5,
        "row_bytes": 4000.0,
        "speedup": 5.0 / epoch_s,
        "speedup_run": 5.0 / epoch_s,
    } | more
    return MiniBatchRecord(epoch_s=epoch_s, **settings)


def run_of(**modes):
    return MiniBatchRun(
        dataset="<graph>",
        workers=4,
        link="100mbit",
        alpha=0.5,
        policy="vip",
        batches=6,
        predicted_remaining=0.22,
        sampler_edges_per_s=2e7,
        modes=modes,
        policies={"vip": {"0.1": 0.61, "0.5": 0.22}, "degree": {"0.1": 0.75, "0.5": 0.43}},
        codec="powersgd",
    )


BOTH = run_of(
    base=record(5.0), int8=record(0.8, link_s=0.7, hit_rate=0.78, pipelined=True, bytes_sent=9_000_000)
)


def text_of(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)).replace("\N{NO-BREAK SPACE}", " ")


def test_the_page_says_that_training_is_emulated_and_claims_no_accuracy():
    slept = {"accuracy": None, "loss": None}
    run = run_of(base=record(5.0, **slept), int8=record(0.8, pipelined=True, **slept))
    told = text_of(mini_batch_html(msgspec.structs.replace(run, processors="own", share="balanced")))
    assert "in an epoch alone (median), with computing emulated." in told
    assert told.count("training is emulated") == 2 and "share the processors" not in told
    assert told.count("not trained") == 2 and "Test accuracy" not in told and "82.0 %" not in told
    assert "so that the busiest link carries the fewest" in told
    both = text_of(mini_batch_html(BOTH))
    assert "emulated" not in both and "busiest link carries" not in both and "Test accuracy" in both


def test_the_page_names_the_fastest_mode_and_what_the_model_allows():
    page = mini_batch_html(BOTH)
    told = text_of(page)
    assert "With int8 1 epoch took 0.800 s: 6.25\N{MULTIPLICATION SIGN} as fast as base, and 6.25" in told
    # (4.0 + 0.5) / max(0.7, 0.5)
    assert "the model allows 6.43" in told
    assert "Rows from the cache 78 %" in told
    assert "<graph>" not in page and "&lt;graph&gt;" in page


def test_the_headline_counts_what_the_cache_took():
    slow_to_plan = record(0.8, epochs_s=(0.8, 0.8), setup_s=6.0, speedup=6.25, speedup_run=10 / 7.6)
    run = run_of(base=record(5.0, epochs_s=(5.0, 5.0)), int8=slow_to_plan)
    told = text_of(mini_batch_html(run))
    times = "\N{MULTIPLICATION SIGN}"
    assert (
        f"2 epochs took 7.60 s, 6.00 s of it to plan and fill the cache: 1.32{times} as fast as base" in told
    )
    assert f"6.25{times} in an epoch alone" in told and "Fastest run 7.60 s" in told
    dear = msgspec.structs.replace(slow_to_plan, setup_s=20.0)
    assert "Fastest run 10.0 s base" in text_of(
        mini_batch_html(run_of(base=record(5.0, epochs_s=(5.0, 5.0)), int8=dear))
    )


def test_bytes_binding_and_policies_are_in_tables():
    page = mini_batch_html(BOTH)
    assert "<td>processors</td>" not in page and page.count("<td>link</td>") == 2
    assert re.search(r"<tr><td>base</td><td class=\"num\">5.00 s</td>.*?37,655.*?150 MB", page)
    cells = ["4,000.0", "120 MB", "150 MB"]
    found = "".join(rf"<td class=\"num\">{cell}</td>" for cell in cells)
    assert re.search(rf"<tr><td>base</td><td>dense</td>{found}.*?\+25", page)
    assert '<td>degree</td><td class="num">75.0 %</td>' in page
    assert "base, rows: 0.400 s" in page


@pytest.mark.parametrize("binding", [("link", 4.0, 0.5), ("processors", 0.4, 0.5)])
def test_what_binds_is_the_longer_one(binding):
    name, link_s, cpu_s = binding
    one = record(1.0, link_s=link_s, cpu_s=cpu_s, pipelined=True)
    assert one.binding == name and one.predicted_s == max(link_s, cpu_s)
    assert record(1.0, link_s=link_s, cpu_s=cpu_s).predicted_s == link_s + cpu_s


def test_a_single_mode_without_bytes_is_a_page_too():
    alone = record(
        1.0, bytes_sent=0, bytes_predicted=0, link_s=0.0, cpu_s=0.0, stage_s={"train": 0.0}, speedup=1.0
    )
    assert "base takes 1.00 s for 1 epoch." in text_of(mini_batch_html(run_of(base=alone)))
