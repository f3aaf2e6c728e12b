"""Distributed convolution of the user's model, between halo exchanges."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, MessagePassing
from torch_geometric.utils import add_remaining_self_loops

from wirewise.errors import InputError
from wirewise.integrations.pyg.edges import EdgeToken
from wirewise.integrations.pyg.hops import MORE_ROWS, run_with, takes_all_rows, takes_hops
from wirewise.integrations.pyg.norms import depends_on_all_nodes
from wirewise.integrations.pyg.probe import agree_on_failure, same_rows
from wirewise.integrations.pyg.recomputation import KeptRows, in_back_propagation, is_checkpointed
from wirewise.integrations.pyg.sums import halo_values
from wirewise.integrations.pyg.view import GraphView
from wirewise.runtime.full_graph import Ticket

__all__ = ["HaloConvolution"]


class HaloConvolution:
    """Replacement of a convolution's forward: own rows in, own rows out.

    Boundary rows are sent, the convolution runs on the central nodes meanwhile, and on the marginal nodes once the
    halo rows have arrived. Convolutions that take a pair of source and destination rows are called that way. GCNConv,
    which does not, is called on own and halo rows with its weights computed from the degrees of the whole graph. So are
    the hops of APPNP, TAGConv and others of `hops`, each after an exchange of its own.

    Args:
        conv: Convolution in our copy of the model.
        name: Name of the convolution in the model.
        layer: Index of its exchange, unique in the job.
        view: Local part and edges of this rank.

    Raises:
        InputError: The convolution cannot be split.
    """

    def __init__(self, conv: nn.Module, name: str, layer: int, view: GraphView) -> None:
        self.conv, self.name, self.layer, self.view = conv, name, layer, view
        self.call: Callable[..., Any] = conv.forward
        self.signature = inspect.signature(conv.forward)
        self.gcn = isinstance(conv, GCNConv) and type(conv).forward is GCNConv.forward
        self.alone = takes_all_rows(conv)
        """It takes rows that are sources and targets at once."""
        self.hops = takes_hops(conv)
        """It passes rows over several hops, and is called on own rows."""
        self.in_one_piece = self.gcn or self.alone or any(depends_on_all_nodes(m) for m in conv.modules())
        self._kept = KeptRows()
        self._check()
        if self.gcn:
            # GCNConv would normalize by the degrees of the local edges.
            self.normalize = bool(conv.normalize)
            conv.normalize = False  # type: ignore[assignment]
        if self.hops:
            self._propagate: Any = conv.propagate
            self.call = run_with(conv, self._hop_weights, self._hop)
        self._fixed: tuple[Tensor, Tensor] | None = None
        """Edges and weights from degrees where the caller gives no weights."""

    def _check(self) -> None:
        conv = self.conv
        if conv.flow != "source_to_target":
            raise self._refused(f"has flow {conv.flow!r}; expected 'source_to_target'")
        if any(isinstance(m, MessagePassing) for m in conv.modules() if m is not conv):
            raise self._refused("holds another convolution; expected convolutions side by side")
        if not (self.gcn or self.hops or self.alone or _takes_pair(self.signature, conv)):
            raise self._refused(
                "takes no pair of source and destination rows; expected GCNConv or a convolution whose forward "
                "accepts (x_source, x_target), such as SAGEConv or GATConv"
            )
        if self.hops and getattr(conv, "cached", False):
            raise self._refused("has cached=True; expected False: the weights of edges are kept anyway")
        if self.hops and any(depends_on_all_nodes(m) for m in conv.modules()):
            raise self._refused("holds a norm over all nodes; expected norms behind the convolution")
        if "edge_index" not in self.signature.parameters:
            raise self._refused("has no argument edge_index, so its neighbours are not those of the graph")

    def _refused(self, why: str) -> InputError:
        return InputError(f"{self.name} is a {type(self.conv).__name__}, which {why}")

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Rows of the own nodes, [own, D].

        Raises:
            InputError: The caller gives what cannot be executed.
        """
        view = self.view
        if not view.inside and not in_back_propagation():
            raise self._refused(
                "was called outside the forward of the model that job.distribute returned; call that model"
            )
        if view.inside:
            view.sequence.append(self.layer)
        x, more, edge_data = self._arguments(args, kwargs)
        recording = view.recording
        if view.replaying:
            assert recording is not None
            return recording.replay(self.name, torch.cat([x, *more.values()], dim=1) if more else x)
        for rows in (x, *more.values()):
            if rows.dim() != 2 or rows.shape[0] != view.part.num_own:
                raise self._refused(
                    f"got rows of shape {list(rows.shape)}; expected [{view.part.num_own}, width], a row for each own "
                    "node"
                )
        given, x = x, _wide(x)
        if self.hops:
            if recording is not None:
                agree_on_failure(view, self.name)
            out = self.call(given, **more, edge_index=view.token, **edge_data)
        elif recording is not None:
            out = self._proven(x, edge_data)
        else:
            out = self._rows(x, given.dtype, edge_data)
        if not isinstance(out, Tensor):
            raise self._refused(f"returned a {type(out).__name__}; expected one tensor")
        if recording is not None:
            given = torch.cat([given, *more.values()], dim=1) if more else given
            recording.calls.append((self.name, given, out))
        return out

    def _arguments(self, args: Any, kwargs: Any) -> tuple[Tensor, dict[str, Tensor], dict[str, Any]]:
        """The rows, further rows of own nodes by name, and what belongs to the edges by name."""
        bound = self.signature.bind(*args, **kwargs).arguments
        first = next(iter(self.signature.parameters))
        x, edge_index = bound.pop(first), bound.pop("edge_index", None)
        if isinstance(x, (tuple, list)) and len(x) == 2 and x[0] is x[1]:
            x = x[0]
        more = {name: bound.pop(name) for name in MORE_ROWS if self.hops and name in bound}
        for rows in (x, *more.values()):
            if not isinstance(rows, Tensor):
                raise self._refused(f"got a {type(rows).__name__} in place of rows; expected one tensor")
        if edge_index is not self.view.token:
            what = "the edges of another job" if isinstance(edge_index, EdgeToken) else "other edges"
            raise self._refused(
                f"was called with {what} than edge_index of job.data; change edges of the whole graph before pyg.Job"
            )
        edge_data = {}
        for name, value in bound.items():
            default = self.signature.parameters[name].default
            if value is None or (not isinstance(value, Tensor) and value is default):
                continue
            # In the proof's second run outputs are recorded ones, and edges whose number is that of own nodes look
            # like rows, of which some were picked.
            if not (self.view.replaying or self._belongs_to_edges(name, value)):
                raise self._refused(
                    f"was called with {name}; expected rows, edges, and tensors with a row for each of the "
                    f"{self.view.edges.count} edges of job.data"
                )
            edge_data[name] = value
        return x, more, edge_data

    def _belongs_to_edges(self, name: str, value: Any) -> bool:
        count, own = self.view.edges.count, self.view.part.num_own
        if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[0] != count:
            return False
        return name.startswith("edge") or count != own or self.view.is_of_edges(value)

    def _rows(self, x: Tensor, dtype: torch.dtype, edge_data: dict[str, Any]) -> Tensor:
        view = self.view
        weights = self._gcn_weights(x, edge_data) if self.gcn else None
        rows = view.stored_features(x)
        if rows is not None:
            return self._whole(rows.to(dtype), edge_data, weights)
        exchange = view.graph.exchange
        again = not view.inside
        own, ticket = exchange.start(
            x, self.layer, cached_rows=self._kept.find(x, self.name) if again else None
        )
        if self.in_one_piece:
            return self._whole(torch.cat([own, self._received(x, ticket)]).to(dtype), edge_data, weights)
        own_rows, central, edges = own.to(dtype), view.part.num_central, view.edges
        before = {n: v[: edges.split] for n, v in edge_data.items()}
        y_central = (
            self.call((own_rows, own_rows[:central]), edge_index=edges.central, **before) if central else None
        )
        halo = self._received(x, ticket).to(dtype)
        if central == len(own):
            assert y_central is not None
            # Nothing is marginal, yet the halo (empty) stays part of the autograd graph.
            return y_central + halo[:0].sum()
        after = {n: v[edges.split :] for n, v in edge_data.items()}
        # Targets come first among the sources, so that a loop that the convolution adds joins a node to itself.
        y_marginal = self.call(
            (torch.cat([own_rows[central:], own_rows[:central], halo]), own_rows[central:]),
            edge_index=edges.marginal,
            **after,
        )
        return y_marginal if y_central is None else torch.cat([y_central, y_marginal])

    def _hop(self, edge_index: Any, *, x: Tensor, size: Any = None, **weights: Any) -> Tensor:
        """One hop of own rows, [own, D] or [stacks, own, D]: an exchange, then the convolution's own `propagate`."""
        view, own = self.view, self.view.part.num_own
        rows = view.stored_features(x)
        if rows is None:
            # The exchange has a row for each node, in which ARMAConv's stacks stand side by side.
            flat = _wide(x if x.dim() == 2 else x.transpose(0, 1).reshape(own, len(x) * x.shape[-1]))
            kept = None if view.inside else self._kept.find(flat, self.name)
            sent, ticket = view.graph.exchange.start(flat, self.layer, cached_rows=kept)
            rows = torch.cat([sent, self._received(flat, ticket)]).to(x.dtype)
            if x.dim() == 3:
                rows = rows.view(len(rows), len(x), x.shape[-1]).transpose(0, 1)
        edges = view.edges.all if edge_index is view.token else edge_index
        return self._propagate(edges, x=rows, **weights).narrow(self.conv.node_dim, 0, own)

    def _hop_weights(
        self,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        num_nodes: int | None = None,
        improved: bool = False,
        add_self_loops: bool = True,
        flow: str = "source_to_target",
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Takes the place of PyG's `gcn_norm`, which would read the degrees of the local edges."""
        return self._weights(edge_weight, dtype or torch.float32, loops=add_self_loops, improved=improved)

    def _received(self, x: Tensor, ticket: Ticket) -> Tensor:
        """The halo rows, kept where gradient checkpointing may call the convolution again."""
        halo = self.view.graph.exchange.finish(ticket)
        if ticket.kept is None and is_checkpointed(self.view.with_gradients):
            self._kept.keep(x, halo)
        return halo

    def _whole(self, rows: Tensor, edge_data: dict[str, Any], weights: Any) -> Tensor:
        """All own nodes in one call, from rows of own and halo nodes."""
        own, edges = self.view.part.num_own, self.view.edges
        if weights is not None:
            return self.call(rows, *weights)[:own]
        if self.alone:
            return self.call(rows, edge_index=edges.all, **edge_data)[:own]
        return self.call((rows, rows[:own]), edge_index=edges.all, **edge_data)

    def _gcn_weights(self, x: Tensor, edge_data: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """Edges and weights as `gcn_norm` of PyG makes them on the whole graph."""
        weight, conv = edge_data.get("edge_weight"), typing.cast(GCNConv, self.conv)
        if not self.normalize:
            return self.view.edges.all, weight
        return self._weights(weight, x.dtype, loops=bool(conv.add_self_loops), improved=bool(conv.improved))

    def _weights(
        self, weight: Tensor | None, dtype: torch.dtype, *, loops: bool, improved: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Edges and weights by the degrees of the whole graph, kept where the caller gives no weights."""
        if weight is not None:
            return self._normalized(weight, dtype, loops, improved)
        if self._fixed is None or self._fixed[1].dtype != dtype:
            self._fixed = self._normalized(None, dtype, loops, improved)
        return self._fixed

    def _normalized(
        self, weight: Tensor | None, dtype: torch.dtype, loops: bool, improved: bool
    ) -> tuple[Tensor, Tensor]:
        view, own = self.view, self.view.part.num_own
        edges = view.edges.all
        if loops:
            # As in PyG, `improved` counts only beside weights that are given.
            edges, weight = add_remaining_self_loops(edges, weight, 2.0 if improved else 1.0, own)
        if weight is None:
            weight = torch.ones(edges.shape[1], dtype=dtype, device=edges.device)
        degree = weight.new_zeros(own).index_add(0, edges[1], weight)
        scale = torch.cat([degree, halo_values(degree, view.part, view.transport)]).pow(-0.5)
        scale = scale.masked_fill(scale == float("inf"), 0.0)
        return edges, scale[edges[0]] * weight * scale[edges[1]]

    def _proven(self, x: Tensor, edge_data: dict[str, Any]) -> Tensor:
        """Output for all own rows as one process would compute it, with a proof that a split does not change it."""
        view = self.view
        agree_on_failure(view, self.name)
        rows = view.stored_features(x)
        if rows is None:
            exchange = view.graph.exchange
            own, ticket = exchange.start(x, self.layer)
            rows = torch.cat([own, exchange.finish(ticket)])
        if self.gcn:
            return self._whole(rows, edge_data, self._gcn_weights(x, edge_data))
        out = self._whole(rows, edge_data, None)
        if self.alone:
            return out
        assert view.recording is not None
        try:
            alike = isinstance(out, Tensor) and self._splits(
                rows, edge_data, None if view.recording.whole else out
            )
            why = "gives other rows when it is called on some targets, or with edges or sources in another order"
        except Exception as error:
            alike = False
            why = f"could not be called on some targets ({type(error).__name__}: {str(error)[:160]})"
        if not alike:
            view.recording.note(f"holds {self.name}, a {type(self.conv).__name__} that {why}")
        return out

    def _splits(self, rows: Tensor, edge_data: dict[str, Any], known: Tensor | None) -> bool:
        """Whether a call on all local rows, known or made now, agrees with one on some targets, in another order."""
        edges, own = self.view.edges.all, self.view.part.num_own
        plain = self.call(rows, edge_index=edges, **edge_data)[:own] if known is None else known
        generator = torch.Generator().manual_seed(2)
        targets = torch.randperm(own, generator=generator)[: min(16, (own + 1) // 2)]
        place = torch.full((len(rows),), -1)
        place[targets] = torch.arange(len(targets))
        chosen = torch.nonzero(place[edges[1]] >= 0)[:, 0]
        chosen = chosen[torch.randperm(len(chosen), generator=generator)]
        others = edges[0, chosen].unique()
        others = others[place[others] < 0]
        others = others[torch.randperm(len(others), generator=generator)]
        place[others] = torch.arange(len(others)) + len(targets)
        part = torch.stack([place[edges[0, chosen]], place[edges[1, chosen]]])
        sources = rows[torch.cat([targets, others])]
        some = self.call(
            (sources, rows[targets]), edge_index=part, **{n: v[chosen] for n, v in edge_data.items()}
        )
        return same_rows(some, plain[targets])


def _wide(x: Tensor) -> Tensor:
    """Rows as they travel: those of half the width as float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _takes_pair(signature: inspect.Signature, conv: nn.Module) -> bool:
    """Whether the annotation of `x` in the convolution's forward allows a pair of tensors."""
    parameter = next(iter(signature.parameters.values()))
    try:
        annotation = typing.get_type_hints(type(conv).forward).get(parameter.name)
    except (NameError, TypeError):
        return "Pair" in str(parameter.annotation) or "uple[" in str(parameter.annotation)
    return _allows_pair(annotation)


def _allows_pair(annotation: Any) -> bool:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        return len(inner) == 2
    return origin in (typing.Union, types.UnionType) and any(_allows_pair(a) for a in inner)
