"""Compressed gradients under Lightning."""

import os

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.harness.processes import run_ranks_as_processes
from wirewise.errors import InputError

WORLD = 2


def fit(rank, folder, steps, resume=None, save=None, world=WORLD):
    """Parameters after some steps, and what the strategy's codecs remember."""
    import lightning

    from wirewise.integrations.lightning import CompressedDDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

        def training_step(self, batch, number):
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world)
    )
    os.environ.update(GROUP_RANK="0", TORCHELASTIC_RUN_ID="test", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.manual_seed(0)
    strategy = CompressedDDPStrategy(codec="topk", process_group_backend="gloo")
    trainer = lightning.Trainer(
        accelerator="cpu", devices=world, strategy=strategy, max_steps=steps, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=True,
    )  # fmt: skip
    data = DataLoader(
        TensorDataset(torch.randn(64, 6, generator=torch.Generator().manual_seed(1))), batch_size=4
    )
    module = Module()
    trainer.fit(module, data, ckpt_path=resume)
    if save:
        trainer.save_checkpoint(save)
    state = strategy.compressed.state_dict()
    strategy.compressed.close()
    return torch.cat([p.detach().view(-1) for p in module.parameters()]), state["residual"]


def saved_and_loaded(rank, folder):
    saved = fit(rank, folder, 8, save=f"{folder}/half.ckpt")
    loaded = fit(rank, folder, 8, resume=f"{folder}/half.ckpt")
    return saved, loaded, fit(rank, folder, 12, resume=f"{folder}/half.ckpt")


@pytest.mark.slow
@pytest.mark.dist
def test_a_checkpoint_holds_what_codecs_remember(tmp_path):
    found = run_ranks_as_processes(WORLD, saved_and_loaded, str(tmp_path))
    for saved, loaded, further in found:
        assert torch.equal(saved[0], loaded[0])
        assert not torch.equal(loaded[0], further[0])
        for name, residual in saved[1].items():
            assert residual.abs().max() > 0
            assert torch.equal(residual, loaded[1][name])
    assert torch.equal(found[0][2][0], found[1][2][0])
    states = torch.load(tmp_path / "half.ckpt", weights_only=True)["wirewise"]
    assert len(states) == WORLD
    assert any(not torch.equal(v, states[1]["residual"][n]) for n, v in states[0]["residual"].items())


def test_wrong_arguments_are_told_at_once():
    from wirewise.integrations.lightning import CompressedDDPStrategy

    with pytest.raises(InputError, match="expected one of them"):
        CompressedDDPStrategy()
    with pytest.raises(InputError, match="unknown gradient codec"):
        CompressedDDPStrategy(codec="best")
