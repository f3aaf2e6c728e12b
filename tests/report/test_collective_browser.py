"""The viewer of collectives in a real browser: frames, playing, keys, memories, the quiz, pictures that repeat."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from importlib import resources

import pytest

from tests.harness.browser import Browser
from tests.report.test_collective_view import network_of, page_of, recorded
from tests.trace.synthetic import make
from wirewise.collective import Program, Transfer
from wirewise.collective.builders import BUILDERS, build
from wirewise.errors import ProgramError
from wirewise.report.collective_data import program_object
from wirewise.report.collective_view import collective_html, recorded_html
from wirewise.trace import align

# A browser is many processes, and the machine may be busy.
pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = 6
DONE = "Done: every rank holds what it should."


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="module")
def ring() -> str:
    """A ring of four ranks next to recursive doubling."""
    return page_of(build("all_reduce", "ring", 4), build("all_reduce", "recursive_doubling", 4))


def test_frames_and_steps_forward_and_back(browser, ring):
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
    with browser.open(ring) as tab:
        found = tab.run(body)
    assert found["seen"] == [f"step {n} of {STEPS}" for n in [*range(STEPS + 1), STEPS - 1]]
    assert found["frames"] == STEPS + 1
    assert found["said"] == DONE
    assert found["first"].startswith("Next: Rank 0 sends chunk")


def test_playing_ends_at_the_end_and_pauses(browser, ring):
    body = """
    choose("speed", "4");
    by("play").click();
    await until(() => +by("slider").value >= 2);
    by("play").click();
    const paused = [by("where").textContent, by("play").getAttribute("aria-pressed")];
    await sleep(500);
    const still = by("where").textContent;
    by("play").click();
    const on = by("play").getAttribute("aria-pressed");
    await until(() => by("play").getAttribute("aria-pressed") === "false");
    return { paused, still, on, end: by("where").textContent, said: by("said0").textContent };
    """
    with browser.open(ring) as tab:
        found = tab.run(body)
    assert found["paused"] == [found["still"], "false"]
    assert found["still"].startswith("step ")
    assert found["still"] not in ("step 0 of 6", "step 6 of 6")
    assert found["on"] == "true"
    assert found["end"] == "step 6 of 6"
    assert found["said"] == DONE


def test_a_frame_that_comes_late_skips_no_step(browser, ring):
    body = """
    const frame = () => new Promise((drawn) => requestAnimationFrame(drawn));
    choose("speed", "4");
    by("play").click();
    await frame();
    await frame();
    const before = +by("slider").value, start = performance.now();
    while (performance.now() < start + 1500);
    await frame();
    await frame();
    return +by("slider").value - before;
    """
    with browser.open(ring) as tab:
        assert 0 <= tab.run(body) < 3


def test_the_pointer_tells_what_is_under_it(browser, ring):
    shown = 'return by("tip").style.display === "block" ? by("tip").textContent : "";'
    with browser.open(ring, fragment="at=6") as tab:
        tab.point("stage0", 0.1, 0.5)
        cell = r"rank \d, chunk 0: values of ranks 0, 1, 2, 3; has to be complete at the end"
        assert re.fullmatch(cell, tab.run(shown))
        tab.point("times0", 0.1, 0.05)
        assert tab.run(shown) == "rank 0 to rank 1, step 1, 250 kB: 0 us to 250 us"
        tab.point("where", 0.5, 0.5)
        assert tab.run(shown) == ""


def test_with_less_motion_playing_goes_from_step_to_step(browser, ring):
    body = """
    const seen = new Set();
    choose("speed", "4");
    by("play").click();
    await until(() => { seen.add(by("slider").value); return by("play").getAttribute("aria-pressed") === "false"; });
    return [...seen];
    """
    with browser.open(ring, calm=True) as tab:
        assert tab.run(body) == [str(step) for step in range(STEPS + 1)]


def test_keys(browser, ring):
    with browser.open(ring) as tab:
        seen = []
        for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "Home", "m", "ArrowRight", "m"):
            tab.press(key)
            seen.append(tab.run('return by("where").textContent;'))
        pressed = []
        for _ in range(2):
            tab.press(" ")
            pressed.append(tab.run('return by("play").getAttribute("aria-pressed");'))
    assert seen[:5] == [f"step {n} of 6" for n in (1, 2, 1, 6, 0)]
    # In time the first event is the end of the first round.
    assert seen[5].startswith("0 us of ")
    assert seen[6].startswith("250 us of ")
    assert seen[7] == "step 1 of 6"
    assert pressed == ["true", "false"]


def test_two_programs_side_by_side_end_at_their_own_times(browser, ring):
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
    with browser.open(ring) as tab:
        found = tab.run(body)
    assert found["end"] == [DONE, DONE, "recursive_doubling"]
    # Recursive doubling of 1 MB ends after the ring does.
    assert found["other"] == DONE
    assert found["panes"] == 3
    assert found["hash"].startswith("#show=0+1&mode=time&at=")


def test_the_quiz_knows_the_right_answer(browser, ring):
    asked = """
    const texts = [...by("quiz").querySelectorAll(".choice")].map((choice) => choice.textContent);
    return { question: by("quiz").querySelector(".question").textContent, texts };
    """
    answered = """
    return [by("quiz").querySelector(".choice.right").textContent, by("quiz").querySelector(".verdict").textContent];
    """
    transfers, right = build("all_reduce", "ring", 4).transfers, 0
    with browser.open(ring) as tab:
        tab.press("q")
        for step in range(STEPS):
            shown = tab.run(asked)
            tab.press("1" if step % 2 else "2")
            answer, verdict = tab.run(answered)
            target = int(shown["question"].split("rank ")[1].split()[0])
            (truth,) = [t for t in transfers if t.step == step and t.target == target]
            adds = " to be added" if truth.reduces else ""
            assert answer[3:] == f"chunk {truth.chunk}{adds} from rank {truth.source}"
            assert len(set(shown["texts"])) == 4
            right += verdict.startswith("Right.")
            tab.press("ArrowRight")
        end = tab.run('return by("quiz").textContent;')
    assert end == f"The end. {right} of 6 right."


@pytest.mark.parametrize("ranks", [1, 5])
def test_every_algorithm_ends_with_the_right_memories(browser, ranks):
    """H1, as the page says it, in steps and in time."""
    programs = built(ranks)
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
    with browser.open(page_of(*programs)) as tab:
        found = tab.run(body)
    assert len(found) == len(programs) > 20
    assert [row[1:3] for row in found] == [[DONE, DONE]] * len(found)
    assert [row[3] == DONE for row in found] == [not program.transfers for program in programs]


def test_memories_of_every_algorithm_and_number_of_ranks(browser):
    """H1, of what the page computes: final memories for 2 to 16 ranks."""
    views = [program_object(network_of(program), "") for ranks in range(2, 17) for program in built(ranks)]
    script = (resources.files("wirewise.report") / "collective_state.js").read_text("utf-8")
    page = f"<html><head></head><body><script>{script}</script></body></html>"
    body = f"""
    return {json.dumps(views)}.map((view) => {{
      const replay = new Replay(view);
      const states = [replay.atStep(view.steps), replay.atTime(view.finish_s), replay.atStep(0), replay.atTime(-1)];
      return states.map((held) => replay.complete(held));
    }});
    """
    with browser.open(page) as tab:
        found = tab.run(body)
    assert len(found) == len(views) > 400
    assert found == [[True, True, False, False]] * len(views)


def built(ranks: int) -> list[Program]:
    """Every algorithm that works for this number of ranks."""
    programs = []
    for collective, algorithm in BUILDERS:
        try:
            programs.append(build(collective, algorithm, ranks, root=ranks - 1, segments=1 + ranks % 3))
        except ProgramError:
            continue  # not for this number of ranks
    return programs


def test_the_same_state_gives_the_same_picture(browser, tmp_path, ring):
    """H2: in two runs of the browser; each state has its own."""
    states = [("show=0+1&at=3", False), ("mode=time&at=0.0006", True), ("show=0&at=5", False)]
    with Browser(tmp_path) as other:
        hashes = [[_hash(one, ring, fragment, dark) for fragment, dark in states] for one in (browser, other)]
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0])) == len(states)


def _hash(browser: Browser, page: str, fragment: str, dark: bool) -> str:
    with browser.open(page, fragment=fragment, dark=dark) as tab:
        return hashlib.sha256(tab.picture()).hexdigest()


def test_paper_has_all_steps_and_light_colours(browser, ring):
    with browser.open(ring, dark=True) as tab:
        dark = tab.run("return getComputedStyle(document.body).backgroundColor;")
        assert tab.pages().startswith(b"%PDF")
        # The screen is as it was.
        assert tab.run("return getComputedStyle(document.body).backgroundColor;") == dark
    with browser.open(ring, dark=True, media="print") as tab:
        seen = tab.run("""
        return { bar: getComputedStyle(document.querySelector(".bar")).display,
                 paper: getComputedStyle(document.body).backgroundColor,
                 frames: [...document.querySelectorAll(".frame")].filter((f) => f.offsetHeight > 20).length };
        """)
    assert seen == {"bar": "none", "paper": "rgb(255, 255, 255)", "frames": STEPS + 1}


def test_a_recorded_run_plays(browser):
    """H3."""
    body = """
    const seen = [];
    while (+by("slider").value < +by("slider").max - 1e-12 && seen.length < 50) {
      seen.push(by("said0").textContent);
      by("forward").click();
    }
    return { seen, steps: by("mode-steps").disabled, where: by("where").textContent };
    """
    with browser.open(recorded_html(recorded(), "run")) as tab:
        found = tab.run(body)
    assert found["steps"]
    assert "Rank 0 sends 1 MB to rank 1." in found["seen"]
    assert "Rank 1 sends 2 MB to rank 2." in found["seen"]


def test_a_hundred_ranks(browser):
    program = build("all_gather", "bruck", 100)
    page = collective_html([network_of(program)])
    with browser.open(page) as tab:
        found = tab.run('by("last").click(); return by("said0").textContent;')
    assert found == DONE


def test_a_run_of_collectives_only_plays(browser):
    """H3: what data-parallel training records."""
    trace = align(make(ranks=3, steps=2).seen)
    with browser.open(recorded_html(trace, "run")) as tab:
        said = tab.run('by("last").click(); by("back").click(); return by("said0").textContent;')
        frames = tab.run('return document.querySelectorAll("#strip .frame").length;')
    assert said == "No message is on its way."
    assert frames > 2


def test_ranks_outside_the_group_relay(browser):
    hops = (Transfer(0, 0, 1, 0), Transfer(0, 1, 2, 1))
    program = Program(
        name="relayed", collective="broadcast", ranks=3, members=(0, 2), chunks=1, transfers=hops, segments=3
    )
    with browser.open(page_of(program)) as tab:
        told = tab.run('by("last").click(); return [by("said0").textContent, by("where").textContent];')
    assert told == [DONE, "step 2 of 2"]


def uneven(segments: int = 1) -> Program:
    """Five, two and one eighth of the data as chunks of their own."""
    hops = tuple(Transfer(chunk, 0, 1, chunk) for chunk in range(3))
    return Program(
        name="uneven",
        collective="broadcast",
        ranks=2,
        chunks=3,
        shares=(5.0, 2.0, 1.0),
        transfers=hops,
        segments=segments,
    )


def test_cells_are_as_wide_as_their_shares(browser):
    # Along the upper edge of the first row the cells have their colour, and there is none between them.
    body = """
    const canvas = by("stage0"), scale = canvas.width / canvas.clientWidth;
    const line = canvas.getContext("2d").getImageData(0, Math.round(27 * scale), canvas.width, 1).data;
    const colour = (x) => line.slice(4 * x, 4 * x + 4).join();
    const own = colour(Math.round(90 * scale));
    const runs = [];
    for (let x = Math.round(72 * scale); x < canvas.width; x++) {
      if (colour(x) !== own) continue;
      if (x && colour(x - 1) === own) runs[runs.length - 1] += 1 / scale;
      else runs.push(1 / scale);
    }
    return runs;
    """
    with browser.open(page_of(uneven()), fragment="at=3") as tab:
        runs = tab.run(body)
    assert len(runs) == 3
    # Frames and gaps take the same of each.
    first, second, third = runs
    assert (first - second) / (second - third) == pytest.approx(3, abs=0.05)
    assert first > 4 * third


def test_the_pointer_knows_cells_of_unequal_width(browser):
    shown = 'return by("tip").textContent;'
    width = 'return by("stage0").clientWidth;'
    with browser.open(page_of(uneven(segments=2)), fragment="at=3") as tab:
        wide = tab.run(width)
        grid = wide - 72 - min(150, 0.2 * wide)
        told = []
        for part in (0.3, 0.33, 0.61, 0.64, 0.74, 0.77, 0.86, 0.89, 0.93, 0.95, 0.99):
            tab.point("stage0", (72 + part * grid) / wide, 0.3)
            told.append(re.search(r"chunk (\d), segment (\d)", tab.run(shown)).groups())
    cells = [(0, 0), (0, 1), (0, 1), (1, 0), (1, 0), (1, 1), (1, 1), (2, 0), (2, 0), (2, 1), (2, 1)]
    assert told == [(str(chunk), str(segment)) for chunk, segment in cells]


def test_many_ranks_are_seen_chosen_and_enlarged(browser):
    """One value of 64 has a sixth of its cell; rows can be chosen and enlarged; unseen pictures are not drawn."""
    body = """
    const stage = by("stage0");
    const blue = () => {
      const { data } = stage.getContext("2d").getImageData(0, 0, stage.width * 0.8, stage.height);
      let found = 0;
      for (let n = 0; n < data.length; n += 4) found += data[n + 2] - data[n] > 60;
      return found / (data.length / 4);
    };
    const size = () => [stage.clientWidth, stage.clientHeight];
    const all = size(), seen = blue();
    by("ranks").value = "0-3, 9";
    by("ranks").dispatchEvent(new Event("input", { bubbles: true }));
    const few = size();
    by("ranks").value = "";
    by("ranks").dispatchEvent(new Event("input", { bubbles: true }));
    choose("zoom", "2");
    const canvases = [...document.querySelectorAll("#strip canvas")];
    const drawn = canvases.filter((one) => one.width !== 300).length;
    return { all, few, seen, large: size(), drawn, of: canvases.length };
    """
    with browser.open(page_of(build("all_reduce", "ring", 64))) as tab:
        found = tab.run(body)
    (wide, high), (_, few_high), (large_wide, large_high) = found["all"], found["few"], found["large"]
    assert 0.06 < found["seen"] < 0.4
    assert few_high < high / 2
    assert large_wide == 2 * wide
    assert large_high > 1.1 * high
    assert found["drawn"] < found["of"] == 36
