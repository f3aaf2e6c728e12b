"""The viewer of collectives in a real browser: frames, playing, keys, memories, the quiz, pictures that repeat."""

from __future__ import annotations

import hashlib

import pytest

from tests.harness.browser import picture, probe
from tests.report.test_collective_view import network_of, page_of, recorded
from wirewise.collective.builders import BUILDERS, build
from wirewise.errors import ProgramError
from wirewise.report.collective_view import collective_html, recorded_html

pytestmark = pytest.mark.browser

STEPS = 6
DONE = "Done: every rank holds what it should."


@pytest.fixture(scope="module")
def ring() -> str:
    """A ring of four ranks next to recursive doubling."""
    return page_of(build("all_reduce", "ring", 4), build("all_reduce", "recursive_doubling", 4))


def test_frames_and_steps_forward_and_back(ring, tmp_path):
    """H2."""
    body = """
    const seen = [by("where").textContent];
    while (by("slider").value < +by("slider").max) { by("forward").click(); seen.push(by("where").textContent); }
    const said = by("said0").textContent;
    by("back").click();
    seen.push(by("where").textContent);
    by("first").click();
    return { seen, said, frames: document.querySelectorAll("#strip .frame").length, first: by("said0").textContent };
    """
    found = probe(ring, body, tmp_path)
    assert found["seen"] == [f"step {n} of {STEPS}" for n in [*range(STEPS + 1), STEPS - 1]]
    assert found["frames"] == STEPS + 1
    assert found["said"] == DONE
    assert found["first"].startswith("Next: Rank 0 sends chunk")


def test_playing_ends_at_the_end_and_pauses(ring, tmp_path):
    body = """
    by("play").click();
    await sleep(1500);
    by("play").click();
    const paused = by("where").textContent;
    await sleep(500);
    const still = by("where").textContent;
    choose("speed", "4");
    by("play").click();
    await sleep(6000);
    return { paused, still, end: by("where").textContent, said: by("said0").textContent,
             pressed: by("play").getAttribute("aria-pressed") };
    """
    found = probe(ring, body, tmp_path, page_ms=10_000)
    assert found["paused"] == found["still"] == "step 1 of 6"
    assert found["end"] == "step 6 of 6"
    assert found["said"] == DONE
    assert found["pressed"] == "false"


def test_keys(ring, tmp_path):
    body = """
    const seen = [];
    for (const key of ["ArrowRight", "ArrowRight", "ArrowLeft", "End", "Home", "m", "ArrowRight", "m"]) {
      press(key);
      seen.push(by("where").textContent);
    }
    press(" ");
    const playing = by("play").getAttribute("aria-pressed");
    press(" ");
    return { seen, playing, paused: by("play").getAttribute("aria-pressed") };
    """
    found = probe(ring, body, tmp_path)
    steps = [1, 2, 1, 6, 0]
    assert found["seen"][:5] == [f"step {n} of 6" for n in steps]
    # Time mode: the first event is the end of the first round.
    assert found["seen"][5].startswith("0 us of ")
    assert found["seen"][6].startswith("250 us of 1.50 ms")
    assert found["seen"][7] == "step 1 of 6"
    assert (found["playing"], found["paused"]) == ("true", "false")


def test_two_programs_side_by_side_end_at_their_own_times(ring, tmp_path):
    body = f"""
    choose("right", "1");
    by("mode-time").click();
    by("last").click();
    const end = [by("said0").textContent, by("said1").textContent, by("title1").textContent];
    by("first").click();
    while (by("said1").textContent !== {DONE!r} && +by("slider").value < +by("slider").max) by("forward").click();
    const panes = [...document.querySelectorAll(".side1")].filter((pane) => !pane.hidden).length;
    return {{ end, panes, other: by("said0").textContent, hash: location.hash }};
    """
    found = probe(ring, body, tmp_path)
    assert found["end"] == [DONE, DONE, "recursive_doubling"]
    # Recursive doubling of 1 MB ends after the ring does.
    assert found["other"] == DONE
    assert found["panes"] == 3
    assert found["hash"].startswith("#show=0+1&mode=time&at=")


def test_the_quiz_knows_the_right_answer(ring, tmp_path):
    body = """
    press("q");
    const rounds = [];
    for (let step = 0; step < 6; step++) {
      const question = by("quiz").querySelector(".question").textContent;
      const texts = [...by("quiz").querySelectorAll(".choice")].map((c) => c.textContent);
      press(step % 2 ? "1" : "2");
      const right = by("quiz").querySelector(".choice.right").textContent;
      rounds.push({ question, texts, right, verdict: by("quiz").querySelector(".verdict").textContent });
      press("ArrowRight");
    }
    return { rounds, end: by("quiz").textContent };
    """
    found = probe(ring, body, tmp_path)
    transfers = build("all_reduce", "ring", 4).transfers
    right = 0
    for step, one in enumerate(found["rounds"]):
        target = int(one["question"].split("rank ")[1].split()[0])
        (truth,) = [t for t in transfers if t.step == step and t.target == target]
        adds = " to be added" if truth.reduces else ""
        wording = f"chunk {truth.chunk}{adds} from rank {truth.source}"
        assert one["right"][3:] == wording
        assert len(set(one["texts"])) == 4
        right += one["verdict"].startswith("Right.")
    assert found["end"] == f"The end. {right} of 6 right."


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_every_algorithm_ends_with_the_right_memories(ranks, tmp_path):
    """H1, of what the page draws, in steps and in time."""
    _all_end(ranks, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, 6, 7, *range(9, 17)])
def test_every_algorithm_ends_with_the_right_memories_of_more_ranks(ranks, tmp_path):
    """H1, of what the page draws, in steps and in time."""
    _all_end(ranks, tmp_path)


def _all_end(ranks, folder):
    programs = []
    for collective, algorithm in BUILDERS:
        try:
            programs.append(build(collective, algorithm, ranks, root=ranks - 1, segments=1 + ranks % 3))
        except ProgramError:
            continue  # not for this number of ranks
    body = """
    const seen = [];
    for (const option of by("left").options) {
      choose("left", option.value);
      const start = by("said0").textContent;
      by("last").click();
      const steps = by("said0").textContent;
      by("mode-time").click();
      by("last").click();
      seen.push([option.textContent, steps, by("said0").textContent, start]);
      by("mode-steps").click();
    }
    return seen;
    """
    found = probe(page_of(*programs), body, folder)
    assert len(found) == len(programs) > 20
    assert [row[1:3] for row in found] == [[DONE, DONE]] * len(found)
    if ranks > 1:
        assert not [row for row in found if row[3] == DONE]


@pytest.mark.parametrize(("fragment", "dark"), [("show=0+1&at=3", False), ("mode=time&at=0.0006", True)])
def test_the_same_state_gives_the_same_picture(ring, fragment, dark, tmp_path):
    """H2."""
    hashes = set()
    for run in range(2):
        folder = tmp_path / str(run)
        folder.mkdir()
        hashes.add(hashlib.sha256(picture(ring, folder, fragment=fragment, dark=dark)).hexdigest())
    assert len(hashes) == 1
    folder = tmp_path / "other"
    folder.mkdir()
    assert hashlib.sha256(picture(ring, folder, fragment="at=5", dark=dark)).hexdigest() not in hashes


def test_a_recorded_run_plays(tmp_path):
    """H3."""
    body = """
    const seen = [];
    while (+by("slider").value < +by("slider").max - 1e-12 && seen.length < 50) {
      seen.push(by("said0").textContent);
      by("forward").click();
    }
    return { seen, steps: by("mode-steps").disabled, where: by("where").textContent };
    """
    found = probe(recorded_html(recorded(), "run"), body, tmp_path)
    assert found["steps"]
    assert "Rank 0 sends 1 MB to rank 1." in found["seen"]
    assert "Rank 1 sends 2 MB to rank 2." in found["seen"]


def test_a_hundred_ranks(tmp_path):
    program = build("all_gather", "bruck", 100)
    page = collective_html([network_of(program)])
    found = probe(page, 'by("last").click(); return by("said0").textContent;', tmp_path)
    assert found == DONE
