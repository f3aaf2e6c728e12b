"""Trainers of other packages are recorded and advised on, and never disturbed."""

import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from wirewise.errors import InputError
from wirewise.integrations.advice import FirstSteps
from wirewise.profile import Tracer


def train(steps):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in DataLoader(TensorDataset(torch.ones(steps, 4)), batch_size=1):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


def test_the_first_steps_are_recorded_and_advised_on_at_the_end(tmp_path):
    first = FirstSteps(tmp_path, warmup=1, steps=6)
    first.begin()
    train(12)
    first.end()
    assert first.advice is not None and first.advice.steps >= 4 and first.advice.ranks == 1
    assert (tmp_path / "advice.html").exists() and (tmp_path / "run" / "rank-0.jsonl").exists()


def test_training_that_is_too_short_or_recorded_already_goes_on(tmp_path, caplog):
    first = FirstSteps(tmp_path / "short", warmup=5, steps=6)
    first.begin()
    train(2)
    first.end()
    with Tracer(tmp_path / "other"):
        second = FirstSteps(tmp_path / "second")
        second.begin()
        train(2)
        second.end()
    assert first.advice is None and second.advice is None
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert lines[0].startswith("no advice on this training: ") and "cannot be recorded" in lines[1]


def test_a_trial_is_recorded_from_outside(tmp_path, monkeypatch):
    monkeypatch.setenv("WIREWISE_TRIAL", "as it is")
    first = FirstSteps(tmp_path)
    first.begin()
    first.end()
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="got 1 steps after 5 of warm-up; expected at least 2"):
        FirstSteps(tmp_path, steps=1)


class Pairs(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, number):
        return {"x": torch.ones(4), "labels": torch.zeros(2)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)

    def forward(self, x, labels):
        out = self.net(x)
        return {"loss": (out - labels).square().mean(), "logits": out}


# Both import a framework, which takes seconds of a processor.
@pytest.mark.slow
def test_a_trainer_of_hugging_face_is_advised(tmp_path):
    pytest.importorskip("transformers")
    from transformers import Trainer, TrainingArguments

    from wirewise.integrations.transformers import AdviceCallback

    callback = AdviceCallback(tmp_path / "advice", warmup=1, steps=6)
    asked = TrainingArguments(
        output_dir=str(tmp_path), max_steps=10, per_device_train_batch_size=4, report_to=[], save_strategy="no",
        use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    Trainer(Model(), asked, train_dataset=Pairs(), callbacks=[callback]).train()
    assert callback.advice is not None and callback.advice.steps >= 4


@pytest.mark.slow
def test_a_trainer_of_lightning_is_advised_and_one_that_fails_keeps_its_error(tmp_path):
    lightning = pytest.importorskip("lightning")
    from wirewise.integrations.lightning import AdviceCallback

    class Module(lightning.LightningModule):
        def __init__(self, fails=False):
            super().__init__()
            self.net, self.fails = nn.Linear(4, 2), fails

        def training_step(self, batch, number):
            if self.fails and number == 3:
                raise ZeroDivisionError("theirs")
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(callback, **options):
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_steps=10, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[callback],
        )  # fmt: skip
        trainer.fit(Module(**options), DataLoader(TensorDataset(torch.ones(40, 4)), batch_size=4))

    callback = AdviceCallback(tmp_path, warmup=1, steps=6)
    fit(callback)
    assert callback.advice is not None and callback.advice.steps >= 4
    with pytest.raises(ZeroDivisionError, match="theirs"):
        fit(AdviceCallback(tmp_path / "failing"), fails=True)
    # The recording is closed: another one can begin.
    Tracer(tmp_path / "next").close()
