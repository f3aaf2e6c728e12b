"""A whole experiment in less than a hundred lines, from its options to its page, on two ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Annotated

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from typer.testing import CliRunner

from wirewise import options as opt
from wirewise.cli import run as command
from wirewise.cli.main import app
from wirewise.errors import InputError
from wirewise.trials.rank import Rank
from wirewise_papers.interleaved import Interleaved, InterleavedRun, interleave


class ToyOptions(opt.Options, frozen=True, kw_only=True):
    """Options of the toy."""

    hosts: Annotated[opt.Count, opt.about("Hosts, a rank on each.")] = 2
    network: opt.HostNetwork = "auto"
    link: opt.Link = "1gbit"
    steps: Annotated[opt.Count, opt.about("Counted steps of a turn.")] = 3
    turns: Annotated[opt.Count, opt.about("Turns of each variant.")] = 2
    timeout_s: opt.Timeout = 60.0


class Toy(Interleaved[ToyOptions, InterleavedRun]):
    """Train a line with buckets of two sizes."""

    name = "toy"
    options = ToyOptions

    def prepare(self, cli_options, log):
        from wirewise_papers.own_links import resolve_links

        job = cli_options.record()
        return resolve_links(job, job.hosts, log)

    def rates(self, job):
        return (job.link,) * job.hosts

    def subjects(self, rank):
        return {name: ToyTraining(size) for name, size in (("small", 0.01), ("large", 25))}


class ToyTraining:
    def __init__(self, bucket_mb: float) -> None:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
        self.model = DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.x = torch.ones(8, 64)

    def train(self, steps: int) -> Iterator[float]:
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = self.model(self.x).square().mean()
            loss.backward()
            self.optimizer.step()
            yield float(loss) / 2

    def outcome(self) -> dict[str, float]:
        return {"buckets": float(self.model._get_ddp_logging_data().get("num_buckets_reduced", 0))}

    def close(self) -> None:
        pass


@pytest.fixture
def installed(monkeypatch):
    """The toy, as the entry point of another package."""
    point = EntryPoint("toy", f"{__name__}:Toy", command.GROUP)
    monkeypatch.setattr(command, "entry_points", lambda group: (point,) if group == command.GROUP else ())


@pytest.mark.lab
def test_an_experiment_runs_from_its_command_to_its_page(installed, tmp_path):
    words = ["run", "toy", "--turns", "3", "--out", str(tmp_path / "run"), "--json", "-"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == found
    small, large = found["variants"]["small"], found["variants"]["large"]
    # A step at the start of each turn is trained, and not counted.
    assert len(small["steps_s"]) == 3 * 3 and len(small["losses"]) == 3 * 4
    assert small["losses"] == pytest.approx(large["losses"]) and small["losses"][-1] < small["losses"][0]
    # Two ranks send each gradient once, as an all-reduce of two does, with headers.
    gradients = 2 * 4 * 4 * (64 * 64 + 64)
    assert gradients < large["bytes_sent"] < 1.5 * gradients and large["bytes_sent"] < small["bytes_sent"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"{found['fastest']} is the fastest of 2 variants" in page and "wirewise run toy" in page


class Short:
    """A variant that yields another number of losses than steps."""

    def __init__(self, missing: int) -> None:
        self.missing = missing

    def train(self, steps: int) -> Iterator[float]:
        yield from [0.0] * (steps - self.missing)


class Alone:
    """Messages of one rank."""

    rank, world_size = 0, 1

    def barrier(self, _what: str) -> None:
        pass


@pytest.mark.parametrize(
    ("missing", "told"), [(1, "yielded 3 losses of 4 steps"), (-1, "more than 4 losses")]
)
def test_a_variant_that_yields_other_losses_than_steps_is_refused(tmp_path, missing, told):
    with pytest.raises(InputError, match=told):
        interleave(Toy(), Rank(ToyOptions(), tmp_path, Alone()), {"short": Short(missing)})


def test_experiments_of_others_are_listed_with_their_help(installed):
    shown = CliRunner().invoke(app, ["run", "--help"]).output
    assert "toy" in shown and "Train a line with buckets of two sizes." in shown
    assert "--turns" in CliRunner().invoke(app, ["run", "toy", "--help"]).output


@pytest.mark.parametrize(
    ("places", "told"),
    [
        (["a_package_that_is_gone:Gone"], "(a_package_that_is_gone:Gone) cannot be imported"),
        (["json:no_such_name"], "cannot be imported"),
        (["json:JSONDecoder"], "expected a class with a method `command`"),
        (["json:dumps", "json:loads"], "is offered by json:dumps and by json:loads"),
    ],
)
def test_an_experiment_that_cannot_be_used_is_named_and_hides_no_other(monkeypatch, places, told):
    points = [EntryPoint("other", place, command.GROUP) for place in places]
    toy = EntryPoint("toy", f"{__name__}:Toy", command.GROUP)
    monkeypatch.setattr(command, "entry_points", lambda group: (*points, toy))
    done = CliRunner().invoke(app, ["run", "other"])
    assert done.exit_code == 2 and told in " ".join(done.output.split()), done.output
    shown = CliRunner().invoke(app, ["run", "--help"]).output
    assert "Not usable" in shown and "Train a line with buckets of two sizes." in shown
