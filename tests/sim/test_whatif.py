"""What-if changes: rewritten graphs against graphs that are built for the changed job."""

import numpy as np
import pytest

from wirewise.cost import Links
from wirewise.errors import InputError
from wirewise.sim import replay, whatif
from wirewise.sim.data_parallel import LayerCost, data_parallel_step
from wirewise.trace.dataflow import KINDS
from wirewise.trace.sketch import GraphSketch, SketchNode

MIB = 2**20
LAYERS = [LayerCost(f"layer {i}", 0.01 * (i + 1), 0.02 * (i + 1), (i + 1) * 0.7 * MIB) for i in range(8)]


def job(**options):
    options = {"hosts": range(2), "bucket_bytes": 5 * MIB, "optimizer_s": 0.01, **options}
    return data_parallel_step(LAYERS, **options)


def links(hosts=2, rate=40 * MIB, latency=1e-3):
    return Links.uniform(hosts, rate, latency)


def step(text, flow=None, net=None, **options):
    setting = whatif.WhatIfJob(dataflow=flow or job(), links=net or links(), **options)
    after = whatif.apply(whatif.parse(text), setting)
    return replay(after.dataflow, after.links).step_s


@pytest.mark.parametrize("cap", [0.1, 1, 2, 8, 100])
def test_buckets_as_if_built_with_them(cap):
    expected = replay(job(bucket_bytes=cap * MIB), links()).step_s
    assert step(f"bucket_mb={cap}") == pytest.approx(expected)


def test_the_default_of_ddp_changes_nothing_in_a_job_that_has_it():
    assert step("bucket_mb=25", job(bucket_bytes=None)) == pytest.approx(
        replay(job(bucket_bytes=None), links()).step_s
    )


@pytest.mark.parametrize("ranks", [1, 3, 4, 8])
def test_ranks_as_if_built_with_them(ranks):
    expected = replay(job(hosts=range(ranks)), links(ranks)).step_s
    assert step(f"ranks={ranks}") == pytest.approx(expected)


def test_ranks_keep_as_many_on_each_host():
    flow = job(hosts=[0, 0, 1, 1])
    net = Links.uniform(2, 40 * MIB, 1e-3, intra_bytes_per_s=100 * MIB)
    expected = replay(
        job(hosts=[0, 0, 1, 1, 2, 2]), Links.uniform(3, 40 * MIB, 1e-3, intra_bytes_per_s=100 * MIB)
    )
    assert step("ranks=6", flow, net) == pytest.approx(expected.step_s)


def test_new_ranks_draw_their_skew():
    slow = step("ranks=4", skew=np.array([2.0]))
    assert slow == pytest.approx(replay(job(hosts=range(4), slowdown=[1, 1, 2, 2]), links(4)).step_s)


@pytest.mark.parametrize("algorithm", ["tree", "ps", "hierarchical"])
def test_algorithms_as_if_built_with_them(algorithm):
    hosts = [0, 0, 1, 1, 2, 2]
    net = Links.uniform(3, 40 * MIB, 1e-3, intra_bytes_per_s=100 * MIB)
    expected = replay(job(hosts=hosts, algorithm=algorithm), net).step_s
    assert step(f"algorithm={algorithm}", job(hosts=hosts), net) == pytest.approx(expected)
    assert step("algorithm=ring", job(hosts=hosts, algorithm=algorithm), net) == pytest.approx(
        replay(job(hosts=hosts), net).step_s
    )


def test_algorithm_holds_for_what_later_changes_make():
    expected = replay(job(hosts=range(4), algorithm="tree"), links(4)).step_s
    assert step("algorithm=tree,ranks=4") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "net"),
    [
        ("bandwidth=*:x0.5", links(rate=20 * MIB)),
        ("bandwidth=x2", links(rate=80 * MIB)),
        ("bandwidth=*:10MiB/s", links(rate=10 * MIB)),
        ("bandwidth=inf", links(rate=np.inf)),
        ("latency=0.02", links(latency=0.02)),
        ("latency=*:+0.02", links(latency=0.021)),
        ("latency=1:0.02", links(latency=0.02)),
        # A ring goes through every host.
        ("bandwidth=1:x0.25", links(rate=10 * MIB)),
    ],
)
def test_links(text, net):
    assert step(text) == pytest.approx(replay(job(), net).step_s)


def test_straggler_and_scale():
    assert step("straggler=1:x1.5") == pytest.approx(replay(job(slowdown=[1, 1.5]), links()).step_s)
    half = [layer._replace(forward_s=layer.forward_s / 2) for layer in LAYERS]
    expected = data_parallel_step(half, range(2), bucket_bytes=5 * MIB, optimizer_s=0.01)
    assert step("scale=forward:x0.5") == pytest.approx(replay(expected, links()).step_s)
    assert step("scale=layer 0:x0") < step("")


@pytest.mark.parametrize("times", [1, 2, 5])
def test_micro_batches_before_an_exchange_compute_and_send_nothing(times):
    batch = sum(layer.forward_s + layer.backward_s for layer in LAYERS)
    assert step(f"accumulation={times}") == pytest.approx(step("") + (times - 1) * batch)
    flow = whatif.apply(
        whatif.parse(f"accumulation={times}"), whatif.WhatIfJob(dataflow=job(), links=links())
    ).dataflow
    assert flow.size_bytes.sum() == job().size_bytes.sum()


def test_no_communication_leaves_compute_alone():
    compute = sum(layer.forward_s + layer.backward_s for layer in LAYERS) + 0.01
    assert step("no_communication") == pytest.approx(compute)
    assert step("no_communication,straggler=0:x2") == pytest.approx(2 * compute)


def test_codec_by_hand():
    layers = [LayerCost("a", 0.0, 1.0, 2 * MIB), LayerCost("b", 0.0, 1.0, 2 * MIB)]
    flow = data_parallel_step(layers, [0, 1], bucket_bytes=1)
    net, second = Links.uniform(2, MIB), 1 / MIB
    # Encode 0.5 s a bucket on the thread: from 1.0 and from 2.5. A quarter of 2 MiB: 0.5 s each, until 3.5.
    # Decode 0.25 s a bucket behind: bucket 0's at 2.5 already but for the second encoding until 3.
    text = f"codec=0.25:{0.25 * second}:{0.125 * second}"
    setting = whatif.apply(whatif.parse(text), whatif.WhatIfJob(dataflow=flow, links=net))
    result = replay(setting.dataflow, net)
    assert result.step_s == pytest.approx(3.75)
    encodes = setting.dataflow.kind == KINDS.index("encode")
    assert sorted(result.end_s[encodes]) == pytest.approx([1.5, 1.5, 3.0, 3.0])
    named = whatif.parse("codec=int8", {"int8": whatif.CodecEffect(0.25, 0.25 * second, 0.125 * second)})
    again = whatif.apply(named, whatif.WhatIfJob(dataflow=flow, links=net))
    assert replay(again.dataflow, net).step_s == pytest.approx(3.75)


def traced(flow):
    """The graph as a tracer makes it: enqueue, join and done ops around each transfer, and no gradient sizes."""
    sketch = GraphSketch.of(flow)
    followers = sketch.followers()
    for op in [op for op, node in sketch.nodes.items() if node.size_bytes > 0]:
        node = sketch.nodes[op]
        join = sketch.add(SketchNode("join", "communication", after=set()))
        for before in node.after:
            rank = sketch.nodes[before].rank
            enqueue = SketchNode("enqueue", "communication", rank=rank, after={before})
            sketch.nodes[join].after.add(sketch.add(enqueue))
        node.after = {join}
        for behind in followers[op]:
            done = sketch.add(SketchNode("done", "communication", rank=sketch.nodes[behind].rank, after={op}))
            sketch.nodes[behind].after = (sketch.nodes[behind].after - {op}) | {done}
    return sketch.dataflow()


@pytest.mark.parametrize("text", ["bucket_mb=2", "ranks=4", "algorithm=tree", "codec=0.5:1e-9:1e-9"])
def test_ops_around_transfers_change_nothing(text):
    assert step(text, traced(job())) == pytest.approx(step(text))


def test_gradient_sizes_that_are_not_known_are_spread():
    layers = [LayerCost(f"{i}", 0.01, 0.02, 1 * MIB) for i in range(8)]
    flow = data_parallel_step(layers, range(2), bucket_bytes=4 * MIB)
    flow.gradient_bytes[:] = 0.0
    expected = replay(data_parallel_step(layers, range(2), bucket_bytes=2 * MIB), links()).step_s
    assert step("bucket_mb=2", flow) == pytest.approx(expected)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "bandwith=x2",
            "expected one of accumulation, algorithm, balanced, bandwidth, bucket_mb, codec, latency, "
            "no_communication, ranks",
        ),
        ("bandwidth=7:x2", "expected \\* or 0 to 1"),
        ("bandwidth=fast", "rate 'fast' is not understood"),
        ("ranks=2.5", "expected a whole number above 0"),
        ("accumulation=0", "expected a whole number above 0"),
        ("straggler=2:x2", "the job has ranks 0 to 1"),
        ("straggler=2", "expected straggler=WHICH:VALUE"),
        ("scale=forward:2", "expected a factor such as x1.5"),
        ("scale=nothing:x2", "the trace has backward, bucket 0"),
        ("no_communication=1", "expected no_communication alone"),
        ("algorithm=star", "expected one of ring, tree, ps, hierarchical"),
        ("codec=int3", "measured codecs: none"),
        ("bucket_mb=0", "expected a number above 0"),
    ],
)
def test_what_is_not_understood_is_named(text, message):
    with pytest.raises(InputError, match=message):
        step(text)


def test_transfers_among_some_ranks_only():
    sketch = GraphSketch([0, 1, 2])
    first = sketch.add(SketchNode("x", "forward", rank=0, duration_s=1.0))
    send = SketchNode(
        "send",
        "communication",
        size_bytes=8.0,
        flows=[(0, 1, 8.0)],
        rounds=1,
        collective="send",
        after={first},
    )
    sketch.add(SketchNode("y", "forward", rank=1, after={sketch.add(send)}))
    with pytest.raises(InputError, match=r"'send' is a transfer among ranks \[0, 1\]"):
        step("ranks=4", sketch.dataflow(), links(3))
    with pytest.raises(InputError, match="found 0 all-reduces behind backward ops"):
        step("bucket_mb=4", sketch.dataflow(), links(3))
