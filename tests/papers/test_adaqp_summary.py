import json

import msgspec
import pytest

from tests.papers.examples import EDGES, USUAL, change, mode, with_adaqp
from wirewise_papers.adaqp.records import RunResult
from wirewise_papers.adaqp.summary import summary_sentence, to_json_object

KEYS = {
    "dataset", "workers", "network", "link_bytes_per_s", "epochs", "modes",
    "speedup_epoch", "speedup_time_to_loss", "accuracy_delta_points",
}  # fmt: skip
MODE_KEYS = {"epoch_s", "time_to_reference_loss_s", "final_loss", "accuracy", "bytes_sent", "mean_bits"}


def test_sentence_of_a_gain() -> None:
    assert summary_sentence(USUAL) == (
        "debian on 4 workers in a lab of 4 hosts with 200 Mbit/s links: adaqp trained 3.00\u00d7 as fast as "
        "fp32 (9.20 s instead of 27.6 s for 20 epochs), sent 3.12\u00d7 fewer bytes over the links (6.00\u00d7 in "
        "payload), came within 1 % of the final loss of fp32 after 8.00 s instead of 24.0 s (3.00\u00d7), and its "
        "test accuracy is 0.10 points lower (75.36 % against 75.46 %)."
    )


@pytest.mark.parametrize(
    ("result", "said", "not_said"),
    [
        (with_adaqp(epoch_s=2.4), "adaqp was slower than fp32, at 2.00\u00d7 the time (", "as fast"),
        (with_adaqp(epoch_s=1.21), "adaqp trained as fast as fp32", "slower"),
        (with_adaqp(accuracy=0.80), "4.54 points higher", "lower"),
        (with_adaqp(accuracy=0.7546), "the same test accuracy (75.46 %)", "points"),
        (
            with_adaqp(bytes_sent=1_800_000_000),
            "sent 3.12\u00d7 fewer bytes over the links (0.500\u00d7 in payload)",
            "sent 2",
        ),
        (
            with_adaqp(kernel_bytes_sent=2_120_000_000),
            "sent 2.00\u00d7 the bytes over the links (6.00",
            "fewer",
        ),
        (with_adaqp(kernel_bytes_sent=None), "sent 6.00\u00d7 fewer bytes of payload", "links ("),
        (
            with_adaqp(time_to_reference_loss_s=48.0),
            "after 48.0 s instead of 24.0 s (0.500\u00d7)",
            "did not",
        ),
        (EDGES["never reached"], "did not come within 1 % of the final loss of fp32", "after"),
        (EDGES["diverged"], "diverged", "within 1 %"),
        (EDGES["loopback"], "no link was limited", "lab"),
        (EDGES["one mode"], "no other mode was trained", "\u00d7"),
        (EDGES["all diverged"], "its loss is no number any more", "\u00d7"),
        (EDGES["not evaluated"], "test accuracy was not compared", "points"),
        (EDGES["no mode"], "No mode was trained", "\u00d7"),
        (EDGES["one worker"], "1 worker in a lab of 1 host ", "bytes"),
    ],
)
def test_sentence_is_true_of_odd_results(result: RunResult, said: str, not_said: str) -> None:
    sentence = summary_sentence(result)
    assert said in sentence
    assert not_said not in sentence.partition(":")[2]
    assert sentence.endswith(".") and "\n" not in sentence and "nan" not in sentence.lower()


def test_the_headline_counts_the_whole_run() -> None:
    """A median that leaves planning out said 1.27 where the run took as long."""
    usual = USUAL.modes["adaqp"]
    planned = msgspec.structs.replace(usual.epochs[0], train_s=usual.epochs[0].train_s + 18.4)
    sentence = summary_sentence(with_adaqp(epochs=[planned, *usual.epochs[1:]]))
    assert "adaqp trained as fast as fp32 (27.6 s instead of 27.6 s for 20 epochs, warm-up" in sentence
    assert "choosing bits included; 3.00\u00d7 an epoch after that)" in sentence


def test_json_of_the_usual_result() -> None:
    found = to_json_object(USUAL)
    assert found.keys() >= KEYS
    assert found["modes"]["adaqp"].keys() >= MODE_KEYS
    assert [found["speedup_epoch"], found["speedup_run"]] == pytest.approx([3.0, 3.0])
    assert found["bytes_ratio"] == pytest.approx(6.0)
    assert found["interface_bytes_ratio"] == pytest.approx(1060 / 340)
    assert found["speedup_time_to_loss"] == pytest.approx(3.0)
    assert found["accuracy_delta_points"] == pytest.approx(-0.1)
    assert found["modes"]["fp32"]["accuracy"] == 0.7546
    assert found["modes"]["adaqp"]["kernel_bytes_sent"] == 340_000_000
    assert (found["reference"], found["hosts"], found["notes"]) == ("fp32", 4, USUAL.notes)


@pytest.mark.parametrize("name", EDGES)
def test_json_holds_no_nan(name: str) -> None:
    found = to_json_object(EDGES[name])
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert msgspec.json.decode(msgspec.json.encode(found)) == found
    assert found.keys() >= KEYS


def test_json_leaves_undefined_figures_out() -> None:
    for name in ("one mode", "no mode"):
        found = to_json_object(EDGES[name])
        assert (found["speedup_epoch"], found["speedup_time_to_loss"]) == (None, None)
        assert found["accuracy_delta_points"] is None
    assert to_json_object(EDGES["never reached"])["speedup_time_to_loss"] is None
    assert to_json_object(EDGES["not evaluated"])["modes"]["adaqp"]["accuracy"] is None
    assert to_json_object(EDGES["diverged"])["modes"]["adaqp"]["final_loss"] is None


def test_speedups_are_those_of_adaqp_or_the_first_other_mode() -> None:
    modes = {"fp32": mode(epoch_s=1.0), "bits8": mode(epoch_s=0.8), "adaqp": mode(epoch_s=0.5)}
    assert to_json_object(change(modes=modes))["speedup_epoch"] == pytest.approx(2.0)
    del modes["adaqp"]
    assert to_json_object(change(modes=modes))["speedup_epoch"] == pytest.approx(1.25)
    assert to_json_object(change(modes=modes))["compared_mode"] == "bits8"
