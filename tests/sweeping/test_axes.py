"""What a sweep varies, from what people type."""

from __future__ import annotations

import pytest

from harness.config import RunConfig
from harness.errors import HarnessError
from harness.sweeping.axes import config_at, parse_axis, parse_variant, span


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("params.ratio=0.05,0.5,1", (0.05, 0.5, 1)),
        ("params.proxies_per_class=1..4", (1, 2, 3, 4)),
        ("params.proxies_per_class=1..3,8, 12", (1, 2, 3, 8, 12)),
        ("params.start=-2..1", (-2, -1, 0, 1)),
        ("protocol.pooling=avg,avg+max", ("avg", "avg+max")),
        ("protocol.crop_scale=0.1,1;0.5,1", ("0.1,1", "0.5,1")),
        ("params.use=true,false", (True, False)),
        ("preset=mlrc,paper", ("mlrc", "paper")),
    ],
)
def test_an_axis_is_read_as_it_is_typed(text: str, values: tuple[object, ...]) -> None:
    axis = parse_axis(text)
    assert axis.key == text.partition("=")[0]
    assert axis.values == values


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("params.ratio", "--over takes KEY=VALUE"),
        ("params.ratio=", "--over takes KEY=VALUE"),
        ("ratio=1,2", "no axis named 'ratio'"),
        ("workers=1,2", "no axis named 'workers'"),
        ("loss=c2,ms", "--loss c2 ccp-c2"),
        ("params.ratio=1,2,1", "has the value 1 twice"),
        ("params.ratio=5..2", "a range goes up, got 5..2"),
    ],
)
def test_what_is_no_axis_is_refused_with_what_would_be(text: str, says: str) -> None:
    with pytest.raises(HarnessError, match=says.replace(".", r"\.")):
        parse_axis(text)


AXES = [parse_axis("params.a=1,2"), parse_axis("params.b=x,y")]


def test_a_grid_has_every_combination_with_the_last_axis_fastest() -> None:
    points = span(AXES, zipped=False, max_points=4)
    assert [tuple(point.values()) for point in points] == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]


def test_zipped_axes_go_together() -> None:
    points = span(AXES, zipped=True, max_points=2)
    assert [tuple(point.values()) for point in points] == [(1, "x"), (2, "y")]
    with pytest.raises(HarnessError, match=r"params\.a has 2, params\.c has 1"):
        span([AXES[0], parse_axis("params.c=1")], zipped=True, max_points=9)


def test_no_axis_is_one_point() -> None:
    assert span([], zipped=False, max_points=1) == [{}]
    assert span([], zipped=True, max_points=1) == [{}]


def test_too_many_points_are_counted_with_the_losses_and_refused() -> None:
    assert len(span(AXES, zipped=False, max_points=8, losses=2)) == 4
    with pytest.raises(HarnessError, match="12 points, more than --max-points 11"):
        span(AXES, zipped=False, max_points=11, losses=3)
    huge = [parse_axis(f"params.{name}=1..1000") for name in "abcdef"]
    with pytest.raises(HarnessError, match="1,000,000,000,000,000,000 points"):
        span(huge, zipped=False, max_points=200)


def test_an_axis_cannot_be_given_twice() -> None:
    with pytest.raises(HarnessError, match=r"params\.a is given twice"):
        span([AXES[0], AXES[0]], zipped=False, max_points=200)


def test_a_point_changes_parameters_protocol_and_settings() -> None:
    config = RunConfig(params={"fixed": 1}, protocol="mlrc+batch_size=8+crop=12")
    values = {
        "protocol.batch_size": 16,
        "params.ratio": 0.5,
        "seed": 3,
        "protocol.clip_norm": None,
        "protocol.crop_scale": (0.5, 1.0),
    }
    at = config_at(config, values)
    assert at.params == {"fixed": 1, "ratio": 0.5}
    assert at.seed == 3
    assert at.protocol == (
        "mlrc+batch_size=8+crop=12+batch_size=16+clip_norm=none+crop_scale=0.5,1.0"
    )


def test_fields_change_the_protocol_of_their_point() -> None:
    at = config_at(RunConfig(), {"protocol.batch_size": 16, "protocol": "frozen"})
    assert at.protocol == "frozen+batch_size=16"


def test_what_is_fixed_cannot_be_swept() -> None:
    with pytest.raises(HarnessError, match=r"params\.ratio is both swept and fixed at 1"):
        config_at(RunConfig(params={"ratio": 1}), {"params.ratio": 2})


def test_a_variant_is_a_name_and_what_it_changes() -> None:
    assert parse_variant("full") == ("full", {})
    assert parse_variant("no norm: protocol.norm=none; params.x=1") == (
        "no norm",
        {"protocol.norm": "none", "params.x": 1},
    )
    with pytest.raises(HarnessError, match="--variant takes NAME:KEY=VALUE"):
        parse_variant("a:b")
