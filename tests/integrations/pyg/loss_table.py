"""Plain losses as users write them: those that a rank's share weighs right, and those that it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.integrations.pyg_models import CLASSES

Loss = Callable[[Tensor, Any], Tensor]
"""Loss of output and data, the same code on one process and on ranks."""

WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])


def y(d: Any) -> Tensor:
    return d.y[d.train_mask]


def real(d: Any) -> Tensor:
    """A real target for each class of the training nodes."""
    return torch.stack([d.y[d.train_mask] * 0.3 + c for c in range(CLASSES)], dim=1)


def each(out: Tensor, d: Any) -> Tensor:
    return F.cross_entropy(out, d.y, reduction="none")


def ce(out: Tensor, d: Any, **options: Any) -> Tensor:
    return F.cross_entropy(out[d.train_mask], y(d), **options)


def scaled(out: Tensor, d: Any) -> Tensor:
    loss: Tensor = torch.amp.GradScaler("cpu", init_scale=8.0).scale(ce(out, d))
    return loss / 8


def distilled(out: Tensor, d: Any) -> Tensor:
    teacher = F.softmax(real(d), dim=1)
    return F.kl_div(F.log_softmax(out[d.train_mask], 1), teacher, reduction="batchmean")


def gaussian(out: Tensor, d: Any) -> Tensor:
    rows = out[d.train_mask]
    return F.gaussian_nll_loss(rows[:, 0], real(d)[:, 0], F.softplus(rows[:, 1]))


def hinge(out: Tensor, d: Any) -> Tensor:
    """Most rows have a gradient of zero."""
    return F.multi_margin_loss(out[d.train_mask], y(d), margin=0.05)


def normed(out: Tensor, d: Any) -> Tensor:
    return ce(F.normalize(out, dim=1) * 3, d)


def weighted_rows(out: Tensor, d: Any) -> Tensor:
    return (WEIGHTS[d.y] * each(out, d))[d.train_mask].mean()


def focal(out: Tensor, d: Any) -> Tensor:
    loss = each(out, d)[d.train_mask]
    return ((1 - (-loss).exp()) ** 2 * loss).mean()


def triplet(out: Tensor, d: Any) -> Tensor:
    """Against two targets of the same row."""
    return F.triplet_margin_loss(out[d.train_mask], real(d), real(d).flip(1))


def self_distilled(out: Tensor, d: Any) -> Tensor:
    """Each row against its own detached prediction, with confidence by row."""
    rows = out[d.train_mask]
    sure, teacher = rows.detach().softmax(1).max(1).values, rows.detach().softmax(1)
    return (sure * F.cross_entropy(rows, teacher, reduction="none")).mean()


def added_in_place(out: Tensor, d: Any) -> Tensor:
    loss = ce(out, d)
    loss += 0.1 * focal(out, d)
    return loss


def summed_in_place(out: Tensor, d: Any) -> Tensor:
    total = torch.zeros(())
    for part in (ce(out, d), focal(out, d)):
        total += part
    total /= 2
    return total


RIGHT: dict[str, Loss] = {
    "added in place": added_in_place,
    "summed in place": summed_in_place,
    "logits changed in place": lambda o, d: ce(o.mul_(2.0), d),
    "self distilled": self_distilled,
    "cross entropy": ce,
    "label smoothing": lambda o, d: ce(o, d, label_smoothing=0.2),
    "class probabilities": lambda o, d: F.cross_entropy(o[d.train_mask], F.softmax(real(d), dim=1)),
    "nll": lambda o, d: F.nll_loss(F.log_softmax(o, 1)[d.train_mask], y(d)),
    "equal class weights": lambda o, d: ce(o, d, weight=torch.full((CLASSES,), 3.0)),
    "ignore_index of none": lambda o, d: ce(o, d, ignore_index=-1),
    "mse": lambda o, d: F.mse_loss(o[d.train_mask], real(d)),
    "mse of one column": lambda o, d: F.mse_loss(o[d.train_mask][:, 0], real(d)[:, 0]),
    "mse flat": lambda o, d: F.mse_loss(o[d.train_mask].view(-1), real(d).view(-1)),
    "mse transposed": lambda o, d: F.mse_loss(o[d.train_mask].t(), real(d).t()),
    "mse transposed and flat": lambda o, d: F.mse_loss(
        o[d.train_mask].t().reshape(-1), real(d).t().reshape(-1)
    ),
    "l1": lambda o, d: F.l1_loss(o[d.train_mask], real(d)),
    "huber": lambda o, d: F.huber_loss(o[d.train_mask], real(d)),
    "smooth l1": lambda o, d: F.smooth_l1_loss(o[d.train_mask], real(d)),
    "bce multi-label": lambda o, d: F.binary_cross_entropy_with_logits(
        o[d.train_mask], (real(d) > 1.5).float()
    ),
    "bce pos_weight": lambda o, d: F.binary_cross_entropy_with_logits(
        o[d.train_mask], (real(d) > 1.5).float(), pos_weight=WEIGHTS[:CLASSES]
    ),
    "bce of sigmoid": lambda o, d: F.binary_cross_entropy(o[d.train_mask].sigmoid(), (real(d) > 1.5).float()),
    "soft margin": lambda o, d: F.soft_margin_loss(o[d.train_mask], (real(d) - 1.5).sign()),
    "gaussian nll": gaussian,
    "poisson nll": lambda o, d: F.poisson_nll_loss(o[d.train_mask], real(d)),
    "hinge": hinge,
    "multi-label soft margin": lambda o, d: F.multilabel_soft_margin_loss(
        o[d.train_mask], (real(d) > 1.5).float()
    ),
    "product with the mask": lambda o, d: (each(o, d) * d.train_mask).sum() / d.train_mask.sum(),
    "none, then mean": lambda o, d: each(o, d)[d.train_mask].mean(),
    "mean by column": lambda o, d: (o[d.train_mask] - real(d)).square().mean(0).sum(),
    "mean by row": lambda o, d: (o[d.train_mask] - real(d)).square().sum(1).mean(),
    "sum over the count": lambda o, d: ce(o, d, reduction="sum") / int(d.train_mask.sum()),
    "sum times the inverse": lambda o, d: each(o, d)[d.train_mask].sum() * (1 / int(d.train_mask.sum())),
    "sum over all elements": lambda o, d: (o[d.train_mask] - real(d)).square().sum() / real(d).numel(),
    "accumulation": lambda o, d: ce(o, d) / 4,
    "several terms": lambda o, d: (
        0.3 * ce(o, d) + F.mse_loss(o[d.train_mask], real(d)) * 0.5 - 0.1 * focal(o, d)
    ),
    "stacked": lambda o, d: (torch.stack([ce(o, d), focal(o, d)]) * torch.tensor([0.2, 0.8])).sum(),
    "stacked mean": lambda o, d: torch.stack([ce(o, d), focal(o, d), ce(o, d)]).mean(),
    "python sum": lambda o, d: sum([ce(o, d), focal(o, d)], torch.zeros(())),
    "shifted": lambda o, d: 2 - (1 - ce(o, d)),
    "twice": lambda o, d: (lambda loss: loss + 0.1 * loss)(ce(o, d)),
    "double": lambda o, d: ce(o, d).double() * 2,
    "grad scaler": scaled,
    "distilled": distilled,
    "normalized rows": normed,
    "weights inside the mean": weighted_rows,
    "focal": focal,
    "triplet of a row": triplet,
    "entropy of rows": lambda o, d: (
        ce(o, d) - 0.1 * (o.softmax(1) * o.log_softmax(1)).sum(1)[d.train_mask].mean()
    ),
    "clamped rows": lambda o, d: each(o, d)[d.train_mask].clamp(max=2.0).mean(),
    "where rows": lambda o, d: torch.where(d.y == 1, 0.0, each(o, d))[d.train_mask].mean(),
    "constant added": lambda o, d: ce(o, d) + 1.0,
    "index rows": lambda o, d: F.cross_entropy(
        o.index_select(0, d.train_mask.nonzero()[:, 0]), d.y[d.train_mask.nonzero()[:, 0]]
    ),
}


def half(d: Any) -> Tensor:
    return d.train_mask & (d.y < 3)


def nan_masked(out: Tensor, d: Any) -> Tensor:
    target = real(d).masked_fill(y(d)[:, None] == 0, float("nan"))
    known = ~target.isnan()
    return (out[d.train_mask] - target)[known].square().mean()


def nanmean(out: Tensor, d: Any) -> Tensor:
    target = real(d).masked_fill(y(d)[:, None] == 0, float("nan"))
    return (out[d.train_mask] - target).square().nanmean()


def contrastive(out: Tensor, d: Any) -> Tensor:
    z = F.normalize(out[d.train_mask], dim=1)
    return F.cross_entropy(z @ z.t() / 0.5, torch.arange(len(z)))


def to_mean_prediction(out: Tensor, d: Any) -> Tensor:
    p = out[d.train_mask].softmax(1)
    return (p * (p.log() - p.mean(0).log())).sum(1).mean()


def with_replacement(out: Tensor, d: Any) -> Tensor:
    rows = d.train_mask.nonzero()[:, 0]
    drawn = rows[torch.randint(0, len(rows), (len(rows),), generator=torch.Generator().manual_seed(1))]
    return F.cross_entropy(out[drawn], d.y[drawn])


def another_mask(out: Tensor, d: Any) -> Tensor:
    rows = torch.cat([d.val_mask.nonzero()[:, 0], d.train_mask.nonzero()[:, 0]])[: int(d.train_mask.sum())]
    return F.cross_entropy(out[rows], d.y[rows])


def dice(out: Tensor, d: Any) -> Tensor:
    p, target = out[d.train_mask].softmax(1)[:, 0], (y(d) == 0).float()
    return 1 - 2 * (p * target).sum() / (p.sum() + target.sum())


def ranking(out: Tensor, d: Any) -> Tensor:
    score = out[d.train_mask][:, 0]
    return F.softplus(-(score[:, None] - score[None, :])).mean()


def balanced(out: Tensor, d: Any) -> Tensor:
    counts = torch.bincount(y(d), minlength=CLASSES).clamp(min=1)
    return ce(out, d, weight=len(y(d)) / (CLASSES * counts.float()))


def to_detached_mean(out: Tensor, d: Any) -> Tensor:
    p = out[d.train_mask].softmax(1)
    return F.kl_div(p.log(), p.detach().mean(0).expand_as(p), reduction="batchmean")


def hard_rows(out: Tensor, d: Any) -> Tensor:
    loss = each(out, d)[d.train_mask]
    return (loss * (loss.detach() > loss.detach().mean())).mean()


def normalized_focal(out: Tensor, d: Any) -> Tensor:
    loss = each(out, d)[d.train_mask]
    weights = (1 - (-loss.detach()).exp()) ** 2
    return (loss * weights / weights.mean()).mean()


def top_rows(out: Tensor, d: Any) -> Tensor:
    loss = each(out, d)[d.train_mask]
    with torch.no_grad():
        rank = loss.argsort().argsort()
    return (loss * (rank < len(loss) / 2)).mean()


def similar(out: Tensor, d: Any) -> Tensor:
    rows = out[d.train_mask]
    with torch.no_grad():
        near = (rows @ rows.t()).softmax(1) @ rows
    return F.mse_loss(rows, near)


def by_order(out: Tensor, d: Any) -> Tensor:
    loss = each(out, d)[d.train_mask]
    return (loss * (loss.sort().indices.argsort() < len(loss) / 2)).mean()


def by_item_free_threshold(out: Tensor, d: Any) -> Tensor:
    loss = each(out, d)[d.train_mask]
    easy = loss < loss.quantile(0.5).detach()
    return torch.where(easy, loss, 0.5 * loss).mean()


REFUSED: dict[str, Loss] = {
    "by order": by_order,
    "by a detached quantile": by_item_free_threshold,
    "by the detached loss": lambda o, d: (each(o, d) * (each(o, d).detach() > ce(o, d).detach()))[
        d.train_mask
    ].mean(),
    "to the detached mean": to_detached_mean,
    "hard rows by a detached mean": hard_rows,
    "normalized focal": normalized_focal,
    "half of the rows by rank": top_rows,
    "similar rows without gradient": similar,
    "adaptive weight of rows": lambda o, d: (each(o, d) / each(o, d).detach().max())[d.train_mask].mean(),
    "sum": lambda o, d: ce(o, d, reduction="sum"),
    "sum over a constant": lambda o, d: each(o, d)[d.train_mask].sum() / 1000,
    "class weights": lambda o, d: ce(o, d, weight=WEIGHTS),
    "class weights and smoothing": lambda o, d: ce(o, d, weight=WEIGHTS, label_smoothing=0.1),
    "balanced class weights": balanced,
    "ignore_index": lambda o, d: ce(o, d, ignore_index=0),
    "NaN-masked": nan_masked,
    "nanmean": nanmean,
    "sum with norms": lambda o, d: (each(o, d) * WEIGHTS[d.y] / 100)[d.train_mask].sum(),
    "flooding": lambda o, d: (ce(o, d) - 1.0).abs() + 1.0,
    "half of the training nodes": lambda o, d: F.cross_entropy(o[half(d)], d.y[half(d)]),
    "half by product": lambda o, d: (each(o, d) * half(d)).sum() / half(d).sum(),
    "contrastive": contrastive,
    "distance to the mean prediction": to_mean_prediction,
    "max": lambda o, d: each(o, d)[d.train_mask].max(),
    "top-k": lambda o, d: each(o, d)[d.train_mask].topk(3).values.mean(),
    "root of mse": lambda o, d: F.mse_loss(o[d.train_mask], real(d)).sqrt(),
    "norm": lambda o, d: (o[d.train_mask] - real(d)).norm(),
    "mean of weights": lambda o, d: (WEIGHTS[d.y] * each(o, d))[d.train_mask].sum() / WEIGHTS[y(d)].sum(),
    "dice": dice,
    "weights of the output": lambda o, d: (lambda w: (w * each(o, d)).sum() / w.sum())(
        o[:, 0].exp() * d.train_mask
    ),
    "ranking": ranking,
    "with replacement": with_replacement,
    "another mask of equal size": another_mask,
    "deviation": lambda o, d: ce(o, d) + 0.1 * o[d.train_mask].std(0).sum(),
    "variance": lambda o, d: ce(o, d) + 0.1 * o.var(),
    "penalty of all outputs": lambda o, d: ce(o, d) + 0.01 * o.square().mean(),
    "entropy of the mean": lambda o, d: (
        ce(o, d) + (lambda p: (p * p.log()).sum())(o[d.train_mask].softmax(1).mean(0))
    ),
    "exp": lambda o, d: ce(o, d).exp(),
    "product": lambda o, d: ce(o, d) * F.mse_loss(o[d.train_mask], real(d)),
    "square": lambda o, d: ce(o, d) ** 2,
    "log of mean": lambda o, d: focal(o, d).log(),
    "median": lambda o, d: each(o, d)[d.train_mask].median(),
    "quantile": lambda o, d: each(o, d)[d.train_mask].quantile(0.9),
    "logsumexp": lambda o, d: each(o, d)[d.train_mask].logsumexp(0),
    "clamped mean": lambda o, d: ce(o, d).clamp(min=0.5),
    "larger of two means": lambda o, d: torch.maximum(ce(o, d), focal(o, d)),
    "one row": lambda o, d: each(o, d)[d.train_mask][0],
    "some rows": lambda o, d: each(o, d)[d.train_mask][:2].mean(),
    "centred": lambda o, d: ce(o - o[d.train_mask].mean(0), d),
    "softmax over rows": lambda o, d: (o[d.train_mask].softmax(0) * real(d)).mean(),
    "batch norm": lambda o, d: ce(F.batch_norm(o, None, None, training=True), d),
    "weights by the loss": lambda o, d: (lambda loss: loss * loss.detach())(ce(o, d)),
    "ratio": lambda o, d: ce(o, d) / focal(o, d).detach(),
    "matrix": lambda o, d: (o[d.train_mask].t() @ o[d.train_mask]).square().mean(),
    "count of classes": lambda o, d: (
        sum((each(o, d)[d.train_mask & (d.y == c)].mean() for c in range(CLASSES)), torch.zeros(())) / CLASSES
    ),
    "squares of a sum": lambda o, d: o[d.train_mask].mean(0).square().sum(),
}
