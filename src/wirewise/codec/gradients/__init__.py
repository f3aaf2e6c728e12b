"""Send fewer gradient bytes: codecs of flat groups of gradients, with one scale, norm or k for each segment.

    codec = make("topk", ratio=0.01)
    segments = Segments([p.numel() for p in group], ids=places)
    out = torch.empty(codec.size_bytes(segments), dtype=torch.uint8)
    codec.encode(gradient, residuals.group(names), segments, out, step=step, rank=rank)
    codec.decode_sum(gathered, segments, gradient, scale=1 / ranks, step=step)

Definitions follow Xu et al., "GRACE: A Compressed Communication Framework for Distributed Machine Learning" (ICDCS
2021) and the papers that each codec names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirewise.lazy import lazy_names

if TYPE_CHECKING:
    from wirewise.codec.gradients.codec import GradientCodec
    from wirewise.codec.gradients.copying import copy_checked, parts_finite
    from wirewise.codec.gradients.named import CODECS, make
    from wirewise.codec.gradients.residuals import Residuals, resize
    from wirewise.codec.gradients.segments import Segments

__all__ = [
    "CODECS",
    "GradientCodec",
    "Residuals",
    "Segments",
    "copy_checked",
    "make",
    "parts_finite",
    "resize",
]

# numba, which codecs need, takes a second to import, and most trainings have none.
__getattr__ = lazy_names(
    __name__,
    {
        "codec": ("GradientCodec",),
        "copying": ("copy_checked", "parts_finite"),
        "named": ("CODECS", "make"),
        "residuals": ("Residuals", "resize"),
        "segments": ("Segments",),
    },
)
