"""The dialogue example: data, model, and trainings that must not depend on ranks, stages or failures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from wirewise.errors import InputError

FOLDER = Path(__file__).parents[2] / "examples" / "csd_dialogue"
sys.path.insert(0, str(FOLDER))

import cluster_job  # noqa: E402
from csd import esconv, generator, metrics, samples, schema  # noqa: E402
from csd.model import DialogueModel, Sizes, _Block  # noqa: E402

SMALL = [
    "--dialogues",
    "60",
    "--encoder-steps",
    "8",
    "--steps",
    "12",
    "--batch",
    "16",
    "--width",
    "32",
    "--layers",
    "2",
]


def started(
    script: str, *words: str, ranks: int = 1, before: tuple[str, ...] = (), threads: str = "1"
) -> str:
    """Output of a script of the example."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command = [*before, *(["torchrun", "--nproc-per-node", str(ranks)] if before else launch)]
    done = subprocess.run(
        [*command, str(FOLDER / script), *words],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": threads},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def weights(output: str) -> set[str]:
    return set(re.findall(r"weights of rank \d+ after \d+ steps: ([0-9a-f]{64})", output))


def test_c1_dialogues_come_back_as_they_were_written(tmp_path):
    made = generator.generate(40, seed=3)
    assert made == generator.generate(40, seed=3) != generator.generate(40, seed=4)
    schema.write_dialogues(made, tmp_path / "dialogues.jsonl")
    assert schema.read_dialogues(tmp_path / "dialogues.jsonl") == made
    assert Counter(one.topic for one in made).most_common(1)[0][1] == 1


def test_c1_labels_are_as_frequent_as_reported():
    turns = [turn for one in generator.generate(200) for turn in one.turns]
    for field, shares in generator.SHARES.items():
        counts = Counter(getattr(turn, field) for turn in turns)
        for label, share in shares.items():
            sigma = (len(turns) * share * (1 - share)) ** 0.5
            assert abs(counts[label] - len(turns) * share) <= 3 * sigma, (field, label)


def test_therapists_follow_the_planted_rule_and_training_lacks_the_rare_words():
    made, rule = generator.generate(100), generator.planted_rule()
    group_of = {topic: group for group, own in generator.GROUPS.items() for topic in own}
    for one in made:
        for before, turn in zip(one.turns[::2], one.turns[1::2], strict=True):
            pair = before.emotion, group_of[one.topic]
            assert (turn.principle, turn.strategy) == (rule["principle"][pair], rule["strategy"][pair])
    words = [
        {word for one in part for turn in one.turns for word in turn.emo_words}
        for part in samples.split(made)
    ]
    assert words[1] - words[0] and (words[0] | words[1]) <= set(generator.LEXICON)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"id": "1"}', "line 2: Object missing required field"),
        ('{"id": "1", "topic": "", "turns": [{"speaker": "nurse", "text": ""}]}', r"nurse.*turns\[0\].speaker"),
        ('{"id": "1", "topic": "", "turns": [{"speaker": "elder", "text": "a", "keywords": ["b"]}]}', "'b' is not in"),
        ("not json", "line 2"),
    ],
)  # fmt: skip
def test_a_damaged_file_of_dialogues_is_refused_by_line(tmp_path, line, told):
    path = tmp_path / "dialogues.jsonl"
    path.write_text('{"id": "0", "topic": "", "turns": []}\n' + line + "\n")
    with pytest.raises(InputError, match=told):
        schema.read_dialogues(path)


@pytest.mark.parametrize("line", ["高兴\t7", "高兴\t7\t12", "好\t5\t5\n好\t5\t5", "高兴\thigh\t5"])
def test_a_damaged_lexicon_is_refused_by_line(tmp_path, line):
    path = tmp_path / "lexicon.tsv"
    path.write_text(line + "\n")
    with pytest.raises(InputError, match=r"line \d: .*expected a new word, valence and arousal of 1 to 9"):
        schema.read_lexicon(path)


def test_esconv_becomes_dialogues(tmp_path):
    path = tmp_path / "ESConv.json"
    said = [
        {"speaker": "seeker", "content": "I feel\n low", "annotation": {}},
        {"speaker": "supporter", "content": "Why?", "annotation": {"strategy": "Question"}},
        {
            "speaker": "supporter",
            "content": "You can",
            "annotation": {"strategy": "Affirmation and Reassurance"},
        },
    ]
    path.write_text(
        json.dumps([{"emotion_type": "depression", "problem_type": "job", "situation": "", "dialog": said}])
    )
    [found] = esconv.read_esconv(path)
    assert [turn.strategy for turn in found.turns] == ["None", "Question", "Others"]
    assert (found.topic, found.turns[0].text, found.turns[0].emotion) == ("job", "I feel low", "Sadness")
    path.write_text('{"dialog": []}')
    with pytest.raises(InputError, match="expected the list of conversations"):
        esconv.read_esconv(path)


def made_samples(dialogues: int = 40) -> tuple[samples.Vocabulary, list[samples.Sample]]:
    training, _ = samples.split(generator.generate(dialogues))
    vocabulary = samples.Vocabulary(training)
    return vocabulary, samples.samples_of(training, vocabulary, generator.LEXICON, samples.Settings())


def test_batches_are_functions_of_step_and_share():
    _, made = made_samples()
    whole, halves = (
        samples.Samples(made, samples.Settings(), batch=16, encoder_steps=4, steps=9) for _ in "ab"
    )
    halves.shares = 2
    for step in (7, 0, 3):
        one, parts = whole(step, 0), [halves(step, share) for share in range(2)]
        assert one.joint == (step >= 4)
        together = torch.cat([part.labels for part in parts])
        assert sorted(together.tolist()) == sorted(one.labels.tolist())
        for share, part in enumerate(parts):
            assert len(part.history) == 8 and torch.equal(part.history, halves(step, share).history)
    order = [whole(step, 0).history for step in range(len(made) // 16)]
    assert len({tuple(row.tolist()) for one in order for row in one[..., 0]}) > len(made) // 2
    halves.shares = 3
    with pytest.raises(InputError, match="batches of 16 for 3 ranks"):
        halves(0, 0)


def test_more_knowledge_words_are_hidden_from_stage_to_stage_and_their_feelings_stay():
    _, made = made_samples()
    one = samples.Samples(made, samples.Settings(), batch=16, encoder_steps=4, steps=8)
    hidden = []
    for rate in samples.Settings().mask_rates:
        batch = one.collate(range(64), 0, rate, False, 1.0)
        hidden.append(int((batch.history[..., 0] == samples.UNKNOWN).sum()))
        assert torch.equal(
            batch.history[..., 2:], one.collate(range(64), 0, 0.0, False, 1.0).history[..., 2:]
        )
    assert hidden[0] == 0 and hidden == sorted(set(hidden))


def test_metrics_of_known_texts():
    assert metrics.bleu(["abcd"], ["abcd"], 4) == pytest.approx(1.0)
    # Two of two pieces of one character, one of one of two, and half as long as the reference.
    assert metrics.bleu(["ab"], ["abcd"], 2) == pytest.approx(2.718281828 ** (1 - 2))
    assert metrics.bleu(["xy"], ["abcd"], 2) == 0.0
    assert metrics.distinct(["abab"], 2) == pytest.approx(2 / 3) and metrics.distinct(["a"], 2) == 0.0
    assert metrics.accuracy([0, 1, 1], [0, 1, 2]) == pytest.approx(2 / 3)
    assert metrics.macro_f1([0, 1, 1], [0, 1, 2]) == pytest.approx((1 + 2 / 3 + 0) / 3)


@pytest.mark.parametrize("without", [(), ("knowledge", "principle"), ("strategy",)])
def test_every_parameter_learns_and_sources_can_be_left_out(without):
    vocabulary, made = made_samples(10)
    drawn = samples.Samples(made, samples.Settings(), batch=8, encoder_steps=0, steps=2)
    model = DialogueModel(Sizes(len(vocabulary), width=16, decoder_layers=2), without)
    model(drawn(0, 0)).total.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    names = ".".join(name for name, _ in model.named_parameters())
    assert ("feelings" in names) == ("knowledge" not in without)
    assert ("labels.principle" in names) == ("principle" not in without)
    with pytest.raises(InputError, match="expected some of: mask, knowledge"):
        DialogueModel(Sizes(8), ("history",))


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_c4_two_ranks_train_as_one_does(tmp_path):
    curves = {}
    for ranks in (1, 2):
        started("train.py", *SMALL, "--dropout", "0", "--losses", str(tmp_path / str(ranks)), ranks=ranks)
        shares = [json.loads((tmp_path / f"{ranks}.{rank}").read_text()) for rank in range(ranks)]
        curves[ranks] = [sum(losses) / ranks for losses in zip(*shares, strict=True)]
    assert len(curves[1]) == 20 and curves[1][8] > curves[1][-1]
    assert max(abs(one - two) for one, two in zip(curves[1], curves[2], strict=True)) <= 1e-5


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_c5_a_killed_rank_changes_no_bit(tmp_path):
    swift = (sys.executable, "-m", "wirewise", "run", "swift", "--kills", "1", "--seed", "1")
    words = [*SMALL, "--steps", "120"]
    calm = weights(started("train.py", *words, ranks=2))
    # A kill has its time: of a training that starts late or ends early it strikes nobody.
    for attempt in range(3):
        run = (*swift, "--out", str(tmp_path / f"run{attempt}"), "--json", str(tmp_path / "found.json"), "--")
        told = started("train.py", *words, ranks=2, before=run)
        found = json.loads((tmp_path / "found.json").read_text())
        if found["recoveries"]:
            break
    assert len(found["recoveries"]) == 1 and found["recoveries"][0]["lost_iterations"] == 0
    logs = "".join(path.read_text() for path in (tmp_path / f"run{attempt}").rglob("*.log"))
    assert weights(told + logs) == calm and len(calm) == 1


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_three_stages_train_as_one_does():
    words = ["--dialogues", "20", "--steps", "4", "--width", "16"]
    one, three = (
        re.findall(r"loss ([\d.]+)", started("pipeline.py", *words, ranks=ranks)) for ranks in (1, 3)
    )
    assert len(one) == 4 and list(map(float, three)) == pytest.approx(list(map(float, one)), abs=1e-5)


@pytest.mark.parametrize("joint", [True, False])
def test_a_job_that_was_stopped_goes_on_as_if_it_never_was(joint):
    def made() -> cluster_job.DialogueTraining:
        return cluster_job.DialogueTraining(3, joint, SimpleNamespace(rank=0, world_size=1))

    whole, first, second = made(), made(), made()
    for number in range(2):
        whole.step(number)
    first.step(0)
    second.load(first.state())
    second.step(1)
    found = zip(whole.bare.parameters(), second.bare.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in found)
    assert not torch.equal(
        first.bare.encoders.embedding.words.weight, whole.bare.encoders.embedding.words.weight
    )


def test_words_of_emotions_are_hidden_before_keywords():
    _, made = made_samples()
    seen = 0
    for number, one in enumerate(made):
        words = samples._spans(one.word)
        first = sum(kind == max(word[0] for word in words) for kind, _, _ in words)
        if len({kind for kind, _, _ in words}) < 2:
            continue
        # As many words as there are of the emotional kind.
        hidden = samples._hidden(one, first / len(words), np.random.default_rng(number)) == samples.UNKNOWN
        kinds = set(one.word[hidden & (one.tokens != samples.UNKNOWN)].tolist())
        assert kinds <= {max(word[0] for word in words)}
        seen += bool(kinds)
    assert seen >= 5


def test_a_closed_gate_lets_nothing_of_its_source_through():
    block = _Block(Sizes(8, width=16), {0, 2}).eval()
    torch.manual_seed(0)
    x, hidden = torch.randn(2, 5, 16), torch.zeros(2, 3, dtype=torch.bool)
    states, others = torch.randn(2, 4, 64), torch.randn(2, 4, 64)
    assert not torch.allclose(block(x, states, hidden), block(x, others, hidden))
    for gate in block.gates:
        torch.nn.init.constant_(gate.bias, -1e4)
    assert torch.allclose(block(x, states, hidden), block(x, others, hidden), atol=1e-6)
