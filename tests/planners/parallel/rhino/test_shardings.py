"""Known plans are found again: where tensor and data parallelism meet, heads, vocabularies, experts, channels."""

import pytest

from tests.planners.parallel import graphs
from tests.planners.parallel.rhino.costs import sent, solved, words


@pytest.mark.parametrize(("rows", "cut"), [(4094, True), (4098, False)])
def test_p1_two_matrices_are_cut_until_rows_are_four_times_the_width(rows, cut):
    """Tensor parallelism sends 4 M H (n - 1) / n elements, data parallelism 16 H^2 (n - 1) / n."""
    problem, found, _ = solved(graphs.mlp(rows, 1024), (2,))
    own = words(problem, found)
    total = sum(step.sent_bytes for move in found.moves for step in move.steps if step.sent_bytes > 100)
    if cut:
        assert (own["up"], own["down"]) == (["S1"], ["S0"])
        assert total == 4 * rows * 1024 * 4 // 2
    else:
        assert (own["up"], own["down"]) == (["R"], ["R"])
        assert total == 16 * 1024**2 * 4 // 2


WIDTH = 64


@pytest.mark.parametrize("rows", [120, 136])
def test_p1_attention_alone_is_cut_until_rows_are_twice_the_width(rows):
    problem, found, _ = solved(graphs.layers(rows=rows, width=WIDTH, batch=4, mlp=False), (2,))
    own = words(problem, found)
    if rows < 2 * WIDTH:
        # Heads of query, key and value are columns of three blocks, rows of the output matrix.
        assert (own["layers.0.qkv"], own["layers.0.out"]) == (["S1/3"], ["S0"])
    else:
        assert (own["layers.0.qkv"], own["layers.0.out"]) == (["R"], ["R"])


@pytest.mark.parametrize(
    ("rows", "attention", "mlp"), [(120, True, True), (192, False, True), (264, False, False)]
)
def test_p1_between_both_attention_is_data_parallel_and_the_rest_is_not(rows, attention, mlp):
    problem, found, cost = solved(graphs.layers(rows=rows, width=WIDTH, batch=4), (2,))
    own = words(problem, found)
    assert (own["layers.0.qkv"] != ["R"]) == attention
    assert (own["layers.0.up"] != ["R"]) == mlp
    # Mixing costs nothing more: each part has what it has alone.
    apart = [
        solved(graphs.layers(rows=rows, width=WIDTH, batch=4, attention=a, mlp=not a), (2,))[2]
        for a in (True, False)
    ]
    assert cost == pytest.approx(sum(apart), rel=1e-3)


def test_p1_a_large_vocabulary_is_cut_and_its_loss_stays_in_parts():
    graph = graphs.gpt(batch=4, length=8, width=32, heads=4, layers=2, words=4096)
    problem, found, _ = solved(graph, (4,))
    own = words(problem, found)
    assert own["head.weight"] == ["S1"] and own["embed.weight"] != ["R"]
    losses = [n for n, node in enumerate(graph.nodes) if node.op.startswith("aten._log_softmax")]
    assert all(str(found.strategies[n].outputs[0][0]) == "S1" for n in losses)
    assert len(found.strategies[losses[0]].inner) == 2


@pytest.mark.parametrize(("length", "wide", "kinds"), [(16, 512, {"all_to_all"}), (256, 8, {"all_reduce"})])
def test_p1_experts_get_tokens_by_all_to_alls_where_their_weights_are_larger(length, wide, kinds):
    graph = graphs.moe(batch=4, length=length, width=64, experts=4, capacity=length // 4, wide=wide)
    problem, found, _ = solved(graph, (4,))
    moves = sent(problem, found)
    assert {kind for _, _, kind in moves} == kinds
    if wide > 8:
        assert words(problem, found)["experts.up"] == ["S0"]
        assert [
            sum(n for (_, phase, _), n in moves.items() if phase == p) for p in ("forward", "backward")
        ] == [2, 2]


def test_p2_heads_of_a_fused_matrix_need_no_message_when_cuts_may_be_strided():
    graph = graphs.layers(rows=64, width=64, batch=4, mlp=False)
    _, found, cost = solved(graph, (2,))
    qkv = {
        n
        for n, node in enumerate(graph.nodes)
        if node.module.endswith("attention") and node.phase == "forward"
    }
    first = min(n for n in qkv if graph.nodes[n].op == "aten.mm.default")
    last = max(
        n
        for n in qkv
        if graph.nodes[n].op == "aten.mm.default" and graph.nodes[n].module == "layers.0.attention"
    )
    between = [m for m in found.moves if first <= m.producer < last and any(s.sent_bytes for s in m.steps)]
    assert not between
    plain, _, more = solved(graph, (2,), strided=False)
    assert more > 1.05 * cost and all("/" not in word for own in words(plain, _).values() for word in own)


def test_p5_early_convolutions_take_the_batch_and_late_ones_channels():
    problem, found, _ = solved(graphs.wide_resnet(), (4,))
    own = words(problem, found)
    assert own["convs.0"] == own["convs.1"] == ["R"]
    assert own["convs.3"] != ["R"] and own["fc"] != ["R"]
    first = next(n for n, node in enumerate(problem.graph.nodes) if node.op == "aten.convolution.default")
    assert str(found.strategies[first].outputs[0][0]) == "S0"


@pytest.mark.slow
def test_copies_of_a_block_cost_what_they_cost_one_by_one():
    folded, apart = (
        solved(graphs.gpt(batch=4, length=8, width=32, heads=4, layers=3, words=64, fold=fold), (2,))[2]
        for fold in (True, False)
    )
    assert apart <= folded * (1 + 1e-6)
    assert folded <= apart * 1.1


def test_operators_without_a_rule_stay_whole_and_are_named():
    draft = graphs.Draft()
    w = draft.parameter("w", 8, 8)
    odd = draft._gives(
        draft.add("aten.odd.default", (draft.mm(draft.input(8, 8), w),), (8, 8)), lambda g: None
    )
    draft.tape[-1] = (
        odd,
        lambda g: draft._to(draft.nodes[odd].inputs[0], draft.add("aten.odd.default", (g,), (8, 8))),
    )
    problem, found, _ = solved(draft.graph(draft.mean(odd)), (2,))
    assert problem.notes == {"aten.odd.default": 2}
    assert [str(one[0]) for one in found.strategies[odd].outputs] == ["R"]
