"""What kind of work operators are, and how much of it."""

from __future__ import annotations

from torch import nn

from tests.runtime.data_parallel.captured import example, loss_of
from tests.runtime.data_parallel.examples import made
from wirewise.runtime.data_parallel.capture import capture


def test_counts_of_one_layer():
    """[6, 4] x [4, 3] forward; the gradient of the weight backward; the batch gets none."""
    found = capture(made(lambda: nn.Linear(4, 3)), loss_of, example("mlp"))
    one = {o.kind: o for o in found.operators.operators}
    assert one["aten.addmm.default"].flops == 2 * 6 * 4 * 3
    assert one["aten.addmm.default"].outside_bytes == 4 * (6 * 4 + 3)
    assert one["aten.addmm.default"].output_bytes == 4 * 6 * 3
    assert one["aten.mm.default"].gradient == "weight"
    assert one["aten.t.default"].category == "view"
    assert one["aten._log_softmax.default"].category == "reduction"


def test_random_numbers_are_opaque_and_the_model_keeps_its_mode():
    model = made(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    kinds = {one.kind: one.category for one in capture(model, loss_of, example("mlp")).operators.operators}
    assert kinds["aten.native_dropout.default"] == "opaque"
    model.eval()
    assert not any(
        "dropout" in one.kind for one in capture(model, loss_of, example("mlp")).operators.operators
    )
