"""A model of stalls over reductions and bytes: the macro study of Stash (ICDCS 2023; arXiv 2208.14344)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from scipy.optimize import nnls

from wirewise.errors import InputError


class MacroModel(msgspec.Struct, frozen=True, kw_only=True):
    """Communication stall of a step: fixed_s + s_per_reduction * L + s_per_byte * G."""

    fixed_s: float
    s_per_reduction: float
    s_per_byte: float
    mape: float
    """Mean of |fit - measured| / measured over the points of the fit."""

    def seconds(self, reductions: float, gradient_bytes: float) -> float:
        """Predicted stall of L reductions that carry G bytes together."""
        return self.fixed_s + self.s_per_reduction * reductions + self.s_per_byte * gradient_bytes


def fit_macro(points: Sequence[tuple[float, float, float]]) -> MacroModel:
    """Fit the stall model to (reductions, gradient bytes, seconds) by least squares without negative terms.

    Errors count relative to the measured stall. Fit reductions of single tensors and of buckets apart: a
    bucket costs what a reduction costs, but also the copy into it.

    Raises:
        InputError: Fewer than 3 points, a stall that is not above 0, or L and G that vary together.
    """
    data = np.asarray(points, dtype=np.float64).reshape(-1, 3)
    if len(data) < 3 or not np.isfinite(data).all() or (data[:, 2] <= 0).any():
        raise InputError(
            f"got {len(data)} points of stall; expected at least 3 of finite numbers with stalls above 0"
        )
    columns = np.column_stack([np.ones(len(data)), data[:, 0], data[:, 1]]) / data[:, 2:]
    norms = np.linalg.norm(columns, axis=0)
    if np.linalg.matrix_rank(columns / norms, tol=1e-6) < 3:
        raise InputError("reductions and bytes vary together; expected points that vary them apart")
    fixed, per_reduction, per_byte = (nnls(columns / norms, np.ones(len(data)))[0] / norms).tolist()
    model = MacroModel(fixed_s=fixed, s_per_reduction=per_reduction, s_per_byte=per_byte, mape=0.0)
    errors = [abs(model.seconds(count, size) / stall - 1) for count, size, stall in data.tolist()]
    return msgspec.structs.replace(model, mape=float(np.mean(errors)))
