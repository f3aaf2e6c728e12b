"""Graphs of training steps made by hand: operators as a capture has them, backward ones by reverse differentiation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from msgspec.structs import replace

from wirewise.trace.operator_graph import OperatorGraph, OperatorNode, RepeatedBlocks

FLOPS_PER_S = 1e12
BYTES_PER_S = 1e15
"""Memory is so fast that multiplications alone take time, unless a test says otherwise."""


class Draft:
    """Nodes and how gradients flow back through them."""

    def __init__(self, bytes_per_s: float = BYTES_PER_S, flops_per_s: float = FLOPS_PER_S) -> None:
        self.nodes: list[OperatorNode] = []
        self.tape: list[tuple[int, Callable[[int], None]]] = []
        self.grads: dict[int, int] = {}
        self.phase, self.module = "forward", ""
        self.bytes_per_s, self.flops_per_s = bytes_per_s, flops_per_s

    def add(self, op: str, inputs: Sequence[int] = (), shape: Sequence[int] = (), **given) -> int:
        known = {
            name: given.pop(name) for name in ("roles", "parts", "dtype", "source", "flops") if name in given
        }
        node = OperatorNode(
            name=f"{op.split('.')[1] if '.' in op else op}_{len(self.nodes)}",
            op=op,
            inputs=tuple(inputs),
            shape=tuple(shape),
            phase=self.phase,
            module=self.module,
            arguments=given,
            **{"roles": tuple(f"input{i}" for i in range(len(inputs)))} | known,
        )
        moved = node.output_bytes + sum(self.nodes[i].output_bytes for i in inputs)
        seconds = node.flops / self.flops_per_s + moved / self.bytes_per_s if node.computes else 0.0
        self.nodes.append(replace(node, time_s=seconds))
        return len(self.nodes) - 1

    def shape(self, node: int) -> tuple[int, ...]:
        return self.nodes[node].shape

    def input(self, *shape: int, dtype: str = "float32") -> int:
        return self.add("input", shape=shape, dtype=dtype, source=f"args.{len(self.nodes)}")

    def parameter(self, name: str, *shape: int) -> int:
        return self.add("parameter", shape=shape, source=name)

    def _gives(self, out: int, back: Callable[[int], None]) -> int:
        self.tape.append((out, back))
        return out

    def _to(self, node: int, gradient: int) -> None:
        if node in self.grads:
            gradient = self.add("aten.add.Tensor", (self.grads[node], gradient), self.shape(node))
        self.grads[node] = gradient

    def mm(self, a: int, b: int) -> int:
        """Product of matrices, or of batches of them."""
        *batch, m, k = self.shape(a)
        n = self.shape(b)[-1]
        op = "aten.bmm.default" if batch else "aten.mm.default"
        flops = 2.0 * prod(batch) * m * k * n
        last = len(batch)

        def back(g: int) -> None:
            at, bt = (self.transpose(one, last, last + 1, keep=False) for one in (a, b))
            if self.nodes[a].op != "input":
                self._to(a, self.add(op, (g, bt), self.shape(a), flops=flops))
            self._to(b, self.add(op, (at, g), self.shape(b), flops=flops))

        return self._gives(self.add(op, (a, b), (*batch, m, n), flops=flops), back)

    def transpose(self, x: int, a: int, b: int, *, keep: bool = True) -> int:
        shape = list(self.shape(x))
        shape[a], shape[b] = shape[b], shape[a]
        out = self.add("aten.transpose.int", (x,), shape, dim0=a, dim1=b)
        if keep:
            self._gives(out, lambda g: self._to(x, self.transpose(g, a, b, keep=False)))
        return out

    def view(self, x: int, *shape: int) -> int:
        before = self.shape(x)
        out = self.add("aten.view.default", (x,), shape, size=list(shape))
        return self._gives(
            out, lambda g: self._to(x, self.add("aten.view.default", (g,), before, size=list(before)))
        )

    def gelu(self, x: int) -> int:
        out = self.add("aten.gelu.default", (x,), self.shape(x))
        return self._gives(
            out, lambda g: self._to(x, self.add("aten.gelu_backward.default", (g, x), self.shape(x)))
        )

    def plus(self, a: int, b: int) -> int:
        """A sum; b may be the same for all rows of a."""
        rows = list(range(len(self.shape(a)) - len(self.shape(b))))

        def back(g: int) -> None:
            self._to(a, g)
            self._to(b, self.add("aten.sum.dim_IntList", (g,), self.shape(b), dim=rows) if rows else g)

        return self._gives(self.add("aten.add.Tensor", (a, b), self.shape(a)), back)

    def softmax(self, x: int) -> int:
        shape = self.shape(x)
        out = self.add("aten._softmax.default", (x,), shape, dim=-1)
        return self._gives(
            out,
            lambda g: self._to(x, self.add("aten._softmax_backward_data.default", (g, out), shape, dim=-1)),
        )

    def norm(self, x: int, weight: int) -> int:
        """Layer norm over the last dimension."""
        shape, small, size = self.shape(x), (*self.shape(x)[:-1], 1), [self.shape(x)[-1]]
        roles = ("input", "weight")
        parts = self.add(
            "aten.native_layer_norm.default", (x, weight), shape, roles=roles, parts=(shape, small, small),
            normalized_shape=size,
        )  # fmt: skip
        out, mean, rstd = self._parts(parts)

        def back(g: int) -> None:
            both = self.add(
                "aten.native_layer_norm_backward.default", (g, x, mean, rstd, weight), shape,
                roles=("grad_out", "input", "mean", "rstd", "weight"), parts=(shape, self.shape(weight)),
                normalized_shape=size,
            )  # fmt: skip
            for one, gradient in zip((x, weight), self._parts(both), strict=True):
                self._to(one, gradient)

        return self._gives(out, back)

    def _parts(self, node: int) -> list[int]:
        return [self.add("getitem", (node,), part, index=i) for i, part in enumerate(self.nodes[node].parts)]

    def split(self, x: int, count: int) -> list[int]:
        """Equal parts of the last dimension."""
        *rest, last = self.shape(x)
        shape, dim = (*rest, last // count), len(rest)
        given = {"split_size": last // count, "dim": dim}
        found = self._parts(self.add("aten.split.Tensor", (x,), shape, parts=(shape,) * count, **given))

        def back(_: int) -> None:
            gradients = [self.grads[one] for one in found]
            self._to(x, self.add("aten.cat.default", gradients, self.shape(x), dim=dim))

        self._gives(found[0], back)
        return found

    def embedding(self, weight: int, rows: int) -> int:
        shape, words = (*self.shape(rows), self.shape(weight)[1]), self.shape(weight)[0]
        out = self.add("aten.embedding.default", (weight, rows), shape, roles=("weight", "indices"))

        def back(g: int) -> None:
            op, roles = "aten.embedding_dense_backward.default", ("grad_output", "indices")
            self._to(weight, self.add(op, (g, rows), self.shape(weight), roles=roles, num_weights=words))

        return self._gives(out, back)

    def conv(self, x: int, weight: int, *, stride: int = 1) -> int:
        n, _, h, w = self.shape(x)
        o, i, kh, kw = self.shape(weight)
        shape = (n, o, h // stride, w // stride)
        flops = 2.0 * prod(shape) * i * kh * kw
        given = {"flops": flops, "roles": ("input", "weight"), "groups": 1}
        out = self.add("aten.convolution.default", (x, weight), shape, **given)

        def back(g: int) -> None:
            both = self.add(
                "aten.convolution_backward.default", (g, x, weight), self.shape(x), flops=2 * flops,
                roles=("grad_output", "input", "weight"), parts=(self.shape(x), self.shape(weight)), groups=1,
            )  # fmt: skip
            for one, gradient in zip((x, weight), self._parts(both), strict=True):
                if self.nodes[one].op != "input":
                    self._to(one, gradient)

        return self._gives(out, back)

    def nll(self, logits: int, target: int) -> int:
        """Cross-entropy of [n, classes]."""
        shape = self.shape(logits)
        logs = self.add("aten._log_softmax.default", (logits,), shape, dim=1)
        roles = ("self", "target")
        op = "aten.nll_loss_forward.default"
        loss, weight = self._parts(self.add(op, (logs, target), roles=roles, parts=((), ()), reduction=1))

        def back(g: int) -> None:
            op, roles = "aten.nll_loss_backward.default", ("grad_output", "self", "target", "total_weight")
            first = self.add(op, (g, logs, target, weight), shape, roles=roles, reduction=1)
            self._to(logits, self.add("aten._log_softmax_backward_data.default", (first, logs), shape, dim=1))

        return self._gives(loss, back)

    def mean(self, x: int) -> int:
        """Mean of all elements, as a loss."""
        shape = self.shape(x)
        return self._gives(
            self.add("aten.mean.default", (x,)),
            lambda g: self._to(x, self.add("aten.expand.default", (g,), shape, size=list(shape))),
        )

    def graph(self, loss: int) -> OperatorGraph:
        """Add the backward pass, each operator of the module that the forward one is of."""
        self.phase = "backward"
        self.module = ""
        self.grads[loss] = self.add("aten.ones_like.default")
        for out, back in reversed(self.tape):
            if out in self.grads:
                self.module = self.nodes[out].module
                back(self.grads[out])
        own = [(n.source, i) for i, n in enumerate(self.nodes) if n.op == "parameter" and i in self.grads]
        gradients = {name: self.grads[i] for name, i in own}
        self.module = ""
        self.add("output", (loss, *gradients.values()))
        return OperatorGraph(nodes=tuple(self.nodes), loss=loss, gradients=gradients)


def mlp(rows: int, width: int, *, widening: int = 4) -> OperatorGraph:
    """Two layers, [rows, width] -> widening * width -> width, in the middle of a model."""
    draft = Draft()
    x = draft.gelu(draft.plus(draft.input(rows, width), draft.parameter("start", rows, width)))
    a, b = draft.parameter("up", width, widening * width), draft.parameter("down", widening * width, width)
    return draft.graph(draft.mean(draft.gelu(draft.mm(draft.gelu(draft.mm(x, a)), b))))


def _attention(
    draft: Draft,
    x: int,
    prefix: str,
    heads: int,
    shape: tuple[int, int, int] | None = None,
    *,
    fused: bool = True,
) -> int:
    """Attention of [rows, width], or of [batch, length, width] where no shape says so; as x in the end."""
    b, t, h = draft.shape(x) if shape is None else shape
    norm = draft.view(x, b * t, h) if shape is None else x
    if fused:
        both = draft.view(draft.mm(norm, draft.parameter(f"{prefix}.qkv", h, 3 * h)), b, t, 3 * h)
        qkv = draft.split(both, 3)
    else:
        each = [draft.mm(norm, draft.parameter(f"{prefix}.{name}", h, h)) for name in ("q", "k", "v")]
        qkv = [draft.view(one, b, t, h) for one in each]
    q, k, v = (
        draft.view(draft.transpose(draft.view(one, b, t, heads, h // heads), 1, 2), b * heads, t, h // heads)
        for one in qkv
    )
    weights = draft.softmax(draft.mm(q, draft.transpose(k, 1, 2)))
    mixed = draft.transpose(draft.view(draft.mm(weights, v), b, heads, t, h // heads), 1, 2)
    out = draft.mm(draft.view(mixed, b * t, h), draft.parameter(f"{prefix}.out", h, h))
    return draft.view(out, b, t, h) if shape is None else out


def block(draft: Draft, x: int, prefix: str, heads: int, *, fused: bool = True) -> int:
    """A block of a transformer, [batch, length, width]."""
    b, t, h = draft.shape(x)
    draft.module = f"{prefix}.attention"
    norm = draft.view(draft.norm(x, draft.parameter(f"{prefix}.first", h)), b * t, h)
    out = _attention(draft, norm, prefix, heads, (b, t, h), fused=fused)
    x = draft.plus(x, draft.view(out, b, t, h))
    draft.module = f"{prefix}.mlp"
    norm = draft.view(draft.norm(x, draft.parameter(f"{prefix}.second", h)), b * t, h)
    up = draft.gelu(draft.mm(norm, draft.parameter(f"{prefix}.up", h, 4 * h)))
    down = draft.view(draft.mm(up, draft.parameter(f"{prefix}.down", 4 * h, h)), b, t, h)
    x = draft.plus(x, down)
    draft.module = ""
    return x


def gpt(
    *,
    batch: int = 8,
    length: int = 64,
    width: int = 256,
    heads: int = 8,
    layers: int = 2,
    words: int = 1024,
    bytes_per_s: float = 1e11,
    fold: bool = True,
    fused: bool = True,
) -> OperatorGraph:
    """A language model with query, key and value from one matrix."""
    draft = Draft(bytes_per_s)
    tokens, target = (draft.input(batch, length, dtype="int64") for _ in range(2))
    draft.module = "embed"
    x = draft.embedding(draft.parameter("embed.weight", words, width), tokens)
    for number in range(layers):
        x = block(draft, x, f"blocks.{number}", heads, fused=fused)
    draft.module = "head"
    flat = draft.view(draft.norm(x, draft.parameter("norm", width)), batch * length, width)
    rows = draft.add("aten.view.default", (target,), (batch * length,), dtype="int64")
    loss = draft.nll(draft.mm(flat, draft.parameter("head.weight", width, words)), rows)
    graph = draft.graph(loss)
    return folded(graph, [f"blocks.{n}" for n in range(layers)]) if fold and layers > 1 else graph


def folded(graph: OperatorGraph, prefixes: Sequence[str]) -> OperatorGraph:
    """The graph with blocks of these names said to be alike, node by node in their order."""

    def own(prefix: str) -> tuple[int, ...]:
        return tuple(
            number
            for number, node in enumerate(graph.nodes)
            if any(name.startswith(prefix + ".") for name in (node.module, node.source))
        )

    nodes = tuple(own(prefix) for prefix in prefixes)
    return replace(graph, repeats=(RepeatedBlocks(prefixes=tuple(prefixes), nodes=nodes),))


def layers(
    *,
    rows: int,
    width: int,
    batch: int,
    heads: int = 4,
    count: int = 2,
    attention: bool = True,
    mlp: bool = True,
    of_rows: bool = True,
) -> OperatorGraph:
    """Alike layers of attention and two matrices, without norms, that only multiplications give work.

    They stand in the middle of a model, whose gradient a parameter of each row stands for; else it is one for all rows.
    """
    draft = Draft(flops_per_s=1e10)
    shape = (batch, rows // batch, width)
    x = draft.gelu(
        draft.plus(draft.input(*shape), draft.parameter("start", *(shape if of_rows else [width])))
    )
    for number in range(count):
        prefix = f"layers.{number}"
        if attention:
            draft.module = f"{prefix}.attention"
            x = draft.gelu(draft.plus(x, _attention(draft, x, prefix, heads)))
        if mlp:
            draft.module = f"{prefix}.mlp"
            flat = draft.view(x, rows, width)
            up = draft.gelu(draft.mm(flat, draft.parameter(f"{prefix}.up", width, 4 * width)))
            down = draft.mm(up, draft.parameter(f"{prefix}.down", 4 * width, width))
            x = draft.gelu(draft.plus(x, draft.view(down, *shape)))
    draft.module = ""
    return folded(draft.graph(draft.mean(x)), [f"layers.{n}" for n in range(count)])


def moe(*, batch: int, length: int, width: int, experts: int, capacity: int, wide: int) -> OperatorGraph:
    """A layer of experts, to which each text of a batch sends `capacity` tokens, as a matrix of zeros and ones says."""
    draft = Draft(flops_per_s=1e10)
    x = draft.gelu(
        draft.plus(draft.input(batch, length, width), draft.parameter("start", batch, length, width))
    )
    draft.module = "experts"
    mask = draft.input(batch, experts * capacity, length)
    sent = draft.view(draft.mm(mask, x), batch, experts, capacity, width)
    own = draft.view(draft.transpose(sent, 0, 1), experts, batch * capacity, width)
    up = draft.gelu(draft.mm(own, draft.parameter("experts.up", experts, width, wide)))
    down = draft.mm(up, draft.parameter("experts.down", experts, wide, width))
    back = draft.transpose(draft.view(down, experts, batch, capacity, width), 0, 1)
    combine = draft.input(batch, length, experts * capacity)
    out = draft.mm(combine, draft.view(back, batch, experts * capacity, width))
    return draft.graph(draft.mean(draft.gelu(draft.plus(x, out))))


def wide_resnet(
    *, batch: int = 64, side: int = 32, channels: Sequence[int] = (16, 64, 256, 1024)
) -> OperatorGraph:
    """Convolutions whose images shrink while their channels grow, and a wide layer behind them."""
    draft = Draft(flops_per_s=1e11)
    x = draft.input(batch, 3, side, side)
    before = 3
    for number, after in enumerate(channels):
        draft.module = f"convs.{number}"
        x = draft.gelu(draft.conv(x, draft.parameter(f"convs.{number}", after, before, 3, 3), stride=2))
        before = after
    draft.module = "fc"
    _, c, h, w = draft.shape(x)
    flat = draft.view(x, batch, c * h * w)
    out = draft.mm(flat, draft.parameter("fc", c * h * w, 512))
    draft.module = ""
    return draft.graph(draft.mean(draft.gelu(out)))
