import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.errors import InputError
from levelhead.tasks.splits import in_seed_order, limit_sides, split_by_group, stable_hash

# (stratum, group, row): rows of one group are variants of one item.
items_strategy = st.lists(
    st.tuples(st.sampled_from("xyz"), st.integers(0, 12), st.integers(0, 99)), min_size=1, max_size=60, unique=True
)


def group(item):
    return f"{item[0]}/{item[1]}"


def test_the_hash_is_the_same_everywhere():
    # echo -n age/1 | sha256sum: the first 13 hex digits, over 16**13
    assert stable_hash("age/1") == 0x7FD2501E303F9 / 16**13
    assert sum(stable_hash(str(i)) < 0.1 for i in range(10_000)) == pytest.approx(1000, abs=100)


@settings(deadline=None)
@given(items=items_strategy, fraction=st.floats(0.01, 0.99))
def test_no_group_straddles_and_nothing_is_lost(items, fraction):
    if len({group(item) for item in items}) < 2:
        with pytest.raises(InputError, match="fewer than two"):
            split_by_group(items, group, fraction)
        return
    sides = split_by_group(items, group, fraction, stratum=lambda item: item[0])
    assert not {group(item) for item in sides["train"]} & {group(item) for item in sides["eval"]}
    assert sorted(sides["train"] + sides["eval"]) == sorted(items)
    assert sides["train"]
    assert sides["eval"]


@settings(deadline=None)
@given(items=items_strategy, fraction=st.floats(0.01, 0.99))
def test_every_stratum_of_two_groups_is_on_both_sides(items, fraction):
    if len({group(item) for item in items}) < 2:
        return
    sides = split_by_group(items, group, fraction, stratum=lambda item: item[0])
    for stratum in {item[0] for item in items}:
        if len({group(item) for item in items if item[0] == stratum}) > 1:
            assert any(item[0] == stratum for item in sides["train"])
            assert any(item[0] == stratum for item in sides["eval"])


def test_more_data_moves_no_group_to_the_other_side():
    few = [("x", i, 0) for i in range(300)]
    many = [("x", i, 0) for i in range(900)]
    before, after = split_by_group(few, group, 0.1), split_by_group(many, group, 0.1)
    assert set(before["eval"]) <= set(after["eval"])
    assert set(before["train"]) <= set(after["train"])


def test_the_held_out_share_is_about_what_was_asked():
    sides = split_by_group([("x", i, 0) for i in range(5000)], group, 0.1)
    assert len(sides["eval"]) == pytest.approx(500, abs=75)


@given(limit=st.integers(2, 120), fraction=st.floats(0.05, 0.95))
def test_a_limit_holds_over_both_sides_and_grows_without_losing(limit, fraction):
    items = [("x", i, 0) for i in range(100)]
    sides = split_by_group(items, group, fraction)
    small, large = (limit_sides(sides, n, fraction, group) for n in (limit, limit + 5))
    assert len(small["train"]) + len(small["eval"]) <= limit
    for side in ("train", "eval"):
        assert small[side]
        assert set(small[side]) <= set(large[side]) <= set(sides[side])


def test_a_limit_too_small_for_two_sides_says_so():
    with pytest.raises(InputError, match="limit"):
        limit_sides({"train": ["a"], "eval": ["b"]}, 1, 0.1, str)


def test_order_depends_on_seed_and_names_alone():
    items = list(range(50))
    assert in_seed_order(items, 3, "t", "train") == in_seed_order(items, 3, "t", "train")
    assert in_seed_order(items, 3, "t", "train") != in_seed_order(items, 4, "t", "train")
    assert in_seed_order(items, 3, "t", "train") != in_seed_order(items, 3, "t", "eval")
    assert sorted(in_seed_order(items, 3, "t")) == items
