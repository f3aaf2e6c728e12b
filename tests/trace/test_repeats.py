"""Blocks that occur several times in a graph of operators."""

from __future__ import annotations

import msgspec

from wirewise.trace import OperatorNode
from wirewise.trace.repeats import repeated_blocks


def chain(*modules: str, widths: dict[str, int] | None = None) -> list[OperatorNode]:
    """A weight and a product for each module, one behind the other."""
    nodes = [OperatorNode(name="x", op="input", shape=(4, 8))]
    for module in modules:
        last = len(nodes) - 1
        width = (widths or {}).get(module, 8)
        weight = OperatorNode(
            name=f"w{last}", op="parameter", shape=(8, width), source=f"{module}.w", module=module
        )
        product = OperatorNode(
            name=f"mm{last}", op="aten.mm.default", inputs=(last, last + 1), roles=("self", "mat2"), module=module,
            shape=(4, width),
        )  # fmt: skip
        nodes += [weight, product]
    return nodes


def test_copies_of_a_list_are_found_with_their_nodes():
    (found,) = repeated_blocks(chain("blocks.0", "blocks.1", "blocks.2", "head"))
    assert found.prefixes == ("blocks.0", "blocks.1", "blocks.2")
    assert found.nodes == ((1, 2), (3, 4), (5, 6))


def test_only_the_outermost_blocks_count_and_numbers_order_them():
    nodes = chain(*(f"layers.{n}.parts.{m}" for n in range(11) for m in range(2)))
    (found,) = repeated_blocks(nodes)
    assert found.prefixes == tuple(f"layers.{n}" for n in range(11))
    assert [len(own) for own in found.nodes] == [4] * 11


def test_what_differs_is_no_copy():
    assert repeated_blocks(chain("blocks.0", "blocks.1", widths={"blocks.1": 4})) == ()
    nodes = chain("blocks.0", "blocks.1")
    nodes[-1] = msgspec.structs.replace(nodes[-1], arguments={"alpha": 2})
    assert repeated_blocks(nodes) == ()
    assert repeated_blocks(chain("first", "second")) == ()


def test_inner_blocks_count_where_outer_ones_differ():
    nodes = chain("towers.0.parts.0", "towers.0.parts.1", "towers.1.parts.0")
    assert [one.prefixes for one in repeated_blocks(nodes)] == [("towers.0.parts.0", "towers.0.parts.1")]
