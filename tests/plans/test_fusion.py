import msgspec
import pytest

from wirewise.errors import InputError, PlanError
from wirewise.plans import Bucket, FusionPlan, loads
from wirewise.plans.fusion import ddp_buckets
from wirewise.plans.splits import PIECE_BLOCK

MIB = 2**20


def bucket(*names: str, size_bytes: int = 400, chunks: int = 1) -> Bucket:
    return Bucket(parameters=names, size_bytes=size_bytes, chunks=chunks)


def plan(*buckets: Bucket, **rest: object) -> FusionPlan:
    return FusionPlan(world_size=2, planner="test", buckets=buckets, **rest)


SPLIT = plan(bucket("b", "a[0]"), bucket("a[1]"), bucket("a[2]", "c"), splits={"a": PIECE_BLOCK})

GOOD = plan(bucket("2.bias", "2.weight"), bucket("0.weight", size_bytes=1_000_000, chunks=4))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"buckets": ()}, "no buckets"),
        ({"buckets": (bucket("a"), bucket())}, "buckets[1]"),
        ({"buckets": (bucket("a", ""),)}, "empty name"),
        ({"buckets": (bucket("a", "a"),)}, "'a' is in bucket 0 as well"),
        ({"buckets": (bucket("a"), bucket("b", "a"))}, "buckets[1]`: 'a' is in bucket 0"),
        ({"buckets": (bucket("a", size_bytes=0),)}, "size_bytes is 0"),
        ({"buckets": (bucket("a", chunks=0),)}, "0 chunks"),
        ({"buckets": (bucket("a", chunks=401),)}, "401 chunks"),
        ({"precision": "float16"}, "expected one of float32, bfloat16"),
        ({"accumulation": 0}, "$.accumulation"),
        ({"fused_ops": (("0",), ())}, "$.fused_ops[1]"),
        ({"fused_ops": (("0", "1"), ("1",))}, "'1' - at `$.fused_ops[1]`"),
        ({"regions": (("mul",), ())}, "$.regions[1]"),
        ({"regions": (("mul", "mul"),)}, "$.regions[0]`: an empty name or one that is listed twice"),
        ({"regions": (("mul", ""),)}, "$.regions[0]`: an empty name"),
        ({"recompute": ("0", "0")}, "$.recompute"),
        ({"predicted_step_s": float("nan")}, "$.predicted_step_s"),
        ({"predicted_memory_bytes": -1}, "$.predicted_memory_bytes"),
        ({"world_size": 0}, "$.world_size"),
    ],
)
def test_what_is_wrong_is_named(changes, words):
    with pytest.raises(PlanError) as caught:
        msgspec.structs.replace(GOOD, **changes).check_itself()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("groups", "splits", "words"),
    [
        (
            (("a[0]", "a[1]"),),
            {"a": 100},
            "'a' - at `$.splits`: pieces of 100 elements; expected a name, and a multiple",
        ),
        ((("a[0]", "a[1]"),), {"a": 0}, "pieces of 0 elements"),
        ((("a[0]",),), {"a": PIECE_BLOCK}, "buckets list 1 pieces of it"),
        ((("a",),), {"a": PIECE_BLOCK}, "expected two or more"),
        ((("b",),), {"a": PIECE_BLOCK}, "buckets list 0 pieces"),
        ((("a[1]", "a[0]"),), {"a": PIECE_BLOCK}, "one behind the other as 'a[0]', 'a[1]'"),
        ((("a[0]", "b"), ("a[1]",)), {"a": PIECE_BLOCK}, "one behind the other"),
        ((("a[0]", "a[2]"),), {"a": PIECE_BLOCK}, "one behind the other"),
        ((("a[0]", "a[1]", "a"),), {"a": PIECE_BLOCK}, "buckets list 3 pieces"),
    ],
)
def test_pieces_that_are_not_all_of_a_parameter_are_named(groups, splits, words):
    with pytest.raises(PlanError) as caught:
        plan(*(bucket(*group) for group in groups), splits=splits).check_itself()
    assert words in str(caught.value)


def test_pieces_belong_to_their_parameter():
    SPLIT.check_itself()
    assert SPLIT.parameters == ["b", "a", "c"]
    assert SPLIT.parameter_of("a[2]") == "a" and SPLIT.parameter_of("c[0]") == "c[0]"
    assert SPLIT.spans == [(0, 0, 1, 0), (1, 1, 1, 1), (1, 2, 2, 0)]
    assert loads(SPLIT.to_json()) == SPLIT
    assert ["split 0", "3", "a[0]", "a[2]", "-", "-"] in SPLIT.table()[1]


def test_plans_from_before_there_were_pieces_are_read():
    old = GOOD.to_json().replace('"splits":{},', "").replace(',"unsplit_step_s":0.0', "")
    assert "split" not in old and loads(old) == GOOD


def test_a_module_may_be_fused_and_computed_again():
    msgspec.structs.replace(GOOD, fused_ops=(("0", "1"),), recompute=("0",)).check_itself()


def test_an_operator_may_be_in_several_regions():
    msgspec.structs.replace(GOOD, regions=(("mul",), ("mul", "add"), ("mul", "sum"))).check_itself()


def test_totals_go_over_all_buckets():
    assert GOOD.parameters == ["2.bias", "2.weight", "0.weight"]
    assert GOOD.size_bytes == 1_000_400


def test_the_gain_needs_both_times():
    assert GOOD.predicted_gain_s == 0.0
    assert msgspec.structs.replace(GOOD, predicted_step_s=0.1).predicted_gain_s == 0.0
    both = msgspec.structs.replace(GOOD, predicted_step_s=0.25, baseline_step_s=0.5)
    assert both.predicted_gain_s == 0.25


def test_text_reads_back_and_unknown_fields_are_refused():
    assert loads(GOOD.to_json()) == GOOD
    with pytest.raises(PlanError, match=r"buckets\[0\]"):
        loads(GOOD.to_json().replace('"chunks":1', '"chunk":1'))


def test_the_table_shows_every_decision():
    whole = msgspec.structs.replace(
        GOOD, fused_ops=(("0", "1"),), regions=(("mul",), ("mul", "add")), recompute=("0",),
        precision="bfloat16", accumulation=4, predicted_step_s=0.1,
    )  # fmt: skip
    titles, rows = whole.table()
    assert titles[0] == "decision"
    assert [row[0] for row in rows] == [
        "bucket 0", "bucket 1", "fused 0", "region 1", "recompute", "precision", "accumulation", "predicted"
    ]  # fmt: skip
    assert rows[1][2:] == ["0.weight", "0.weight", "1.000", "4"]
    assert "100.000 ms a step" in whole.summary()
    assert len(GOOD.table()[1]) == 2


def with_codec(codec: str, planner: str) -> FusionPlan:
    buckets = tuple(msgspec.structs.replace(one, codec=codec) for one in GOOD.buckets)
    changes = {"planner": planner, "buckets": buckets, "predicted_step_s": 0.1, "baseline_step_s": 0.2}
    return msgspec.structs.replace(GOOD, **changes)


@pytest.mark.parametrize(
    ("codec", "planner", "baseline"),
    [
        ("randomk", "cupcake", "each gradient alone, randomk"),
        ("none", "cupcake", "each gradient alone, compressed if offered"),
        ("none", "even:4", "each gradient alone, compressed if offered"),
        ("none", "dpro", "without plan"),
    ],
)
def test_the_row_of_the_baseline_says_what_it_is(codec, planner, baseline):
    rows = {row[0]: row[2] for row in with_codec(codec, planner).table()[1]}
    assert rows[baseline] == "200.000 ms a step"
    assert [row for row in rows if row.startswith(("without plan", "each gradient"))] == [baseline]


def test_the_headline_says_what_a_lossy_codec_keeps():
    lossy = with_codec("randomk", "cupcake")
    said = "fusion plan by 'cupcake' for 2 ranks, lossy: randomk sends random values, 1 % of them by default"
    assert lossy.headline == said == lossy.summary().splitlines()[0]
    assert with_codec("none", "cupcake").headline == "fusion plan by 'cupcake' for 2 ranks"


def test_buckets_by_size_are_closed_once_they_are_full():
    sizes = {"a": 10, "b": 60, "c": 40, "d": 200, "e": 1}
    plan = FusionPlan.by_size(sizes, 4, 100)
    assert [bucket.parameters for bucket in plan.buckets] == [("a", "b", "c"), ("d",), ("e",)]
    assert [bucket.size_bytes for bucket in plan.buckets] == [110, 200, 1]
    plan.check_itself()
    assert [b.parameters for b in FusionPlan.by_size(sizes, 4).buckets] == [("a", "b", "c", "d", "e")]
    with pytest.raises(PlanError, match="no buckets"):
        FusionPlan.by_size({}, 4, 100).check_itself()


def test_buckets_by_the_rule_of_ddp():
    assert ddp_buckets([1, 1, 5, 1, 1, 9], 3, first_bytes=2) == [[0, 1], [2], [3, 4, 5]]
    assert ddp_buckets([0.5], 3, first_bytes=2) == [[0]]
    # Only where a job gives no cap is that of the first bucket another one.
    assert ddp_buckets([MIB, MIB, 20 * MIB, 5 * MIB, 1]) == [[0], [1, 2, 3], [4]]
    assert ddp_buckets([MIB, MIB, 20 * MIB, 3 * MIB, 1], 25 * MIB) == [[0, 1, 2, 3], [4]]
    with pytest.raises(InputError, match="expected sizes above 0"):
        ddp_buckets([1.0], 0.0)
