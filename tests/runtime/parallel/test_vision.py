"""Models of torchvision and timm as they are, which `make test-all` installs, on four ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from tests.runtime.parallel.compared import compare
from wirewise.errors import PlanError
from wirewise.runtime.joint_graph import capture_step

FOLDER = Path(sys.prefix) / "vision"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not FOLDER.exists(), reason="`make test-all` installs torchvision and timm"),
]


@pytest.fixture(scope="module")
def libraries():
    """Load torchvision and timm, whose models take none of the operators that torchvision's own library has."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sys.path.append(str(FOLDER))
    try:
        import timm
        import torchvision
    finally:
        sys.path.remove(str(FOLDER))
    return torchvision.models, timm


def resnet(models, timm):
    # The blocks of resnet50, one a width: all of its 16 take half a minute.
    return models.ResNet(models.resnet.Bottleneck, [1, 1, 1, 1], num_classes=10)


def convnext(models, timm):
    return timm.create_model("convnext_atto", num_classes=10, depths=(1, 1, 1, 1))


def swin(models, timm):
    sizes = {"img_size": 32, "window_size": 2, "embed_dim": 24, "depths": (2, 2), "drop_path_rate": 0.0}
    return timm.create_model("swin_tiny_patch4_window7_224", num_classes=10, **sizes)


def efficientnet(models, timm):
    return models.efficientnet_b0(num_classes=10, dropout=0.0, stochastic_depth_prob=0.0)


def loss_of(model, inputs):
    return functional.cross_entropy(model(inputs[0]), inputs[1])


def case(build, libraries, size=64):
    torch.manual_seed(0)
    # In double precision: batch norm of four rows makes noise of single precision as large as some gradients.
    model = build(*libraries).double()
    images = torch.randn(4, 3, size, size, dtype=torch.float64)
    return model, (images, torch.randint(10, (4,))), loss_of


@pytest.mark.parametrize(("build", "size"), [(resnet, 64), (convnext, 64), (swin, 32)])
def test_models_of_images_are_right(build, size, libraries):
    compare(*case(build, libraries, size), mesh=(4,))
    if build is resnet:
        with pytest.raises(PlanError, match=r"batch_norm.* of module 'bn1' needs more than the rows"):
            compare(*case(build, libraries, size), mesh=(4,), microbatches=2)
    else:
        compare(*case(build, libraries, size), mesh=(4,), microbatches=2)


def test_a_model_of_many_layers_is_captured(libraries):
    assert not capture_step(*case(efficientnet, libraries)).graph.notes
