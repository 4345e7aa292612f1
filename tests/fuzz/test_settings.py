"""Config files, --set, protocol names, split files and loss spaces that somebody damaged."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from conftest import FOLDER, write_images
from ends import cases, run, unchanged
from hypothesis import example, given
from hypothesis import strategies as st
from mutations import WORDS, damaged_yaml

from harness import registry
from harness.config import RunConfig, load_config, parse_assignments
from harness.errors import HarnessError
from harness.experiment import build_experiment
from harness.protocols.protocol import EvaluationProtocol
from harness.split_file import read_split

CONFIG = {
    **{"loss": "proxyanchor", "protocol": FOLDER, "trunk": "convnet", "trials": 2, "seed": 0},
    **{"params": {"margin": 0.1, "alpha": 32}, "workers": 1, "device": "cpu", "cache": "on"},
    **{"sampler": "gp", "per_gpu": "auto", "runs_dir": "runs", "select": "mean"},
}

BOMB = b"\n".join(
    [b"a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    + [b"a%d: &a%d [%s]" % (i, i, b",".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 12)]
)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "pictures"
    write_images(folder, num_classes=16, per_class=2)
    return folder


@cases(0.12)
@given(content=damaged_yaml(yaml.safe_dump(CONFIG).encode()))
@example(content=BOMB)
@example(content=b"? [a]\n: 1\n")
@example(content=b"[" * 5000)
@example(content=b"loss: !!python/object/apply:os.system [ls]\n")
def test_a_damaged_config_is_refused_or_resolved(
    content: bytes, pictures: Path, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    registry.forget_listings()
    with unchanged(tmp_path):
        try:
            config = RunConfig().updated(load_config(path))
            build_experiment(config.updated({"dataset": f"folder:{pictures}"}))
        except HarnessError as refused:
            assert str(refused).strip()


@cases(0.01)
@given(content=damaged_yaml(yaml.safe_dump(CONFIG).encode()))
@example(content=BOMB)
def test_a_command_with_a_damaged_config_ends_with_a_message(
    content: bytes, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with unchanged(pictures):
        run(["data", "check", f"folder:{pictures}", "--config", str(path)]).check()
    assert path.read_bytes() == content


@cases(0.06)
@given(
    st.lists(
        st.builds(
            "{}{}{}".format,
            st.sampled_from([*RunConfig.__dataclass_fields__, "params.margin", "params.", "", "x"]),
            st.sampled_from(["=", "=", "=", "", "==", ": "]),
            st.one_of(st.sampled_from(WORDS), st.text(max_size=8)),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_set_takes_a_value_or_says_why_not(assignments: list[str]) -> None:
    try:
        RunConfig().updated(parse_assignments(assignments))
    except HarnessError as refused:
        assert str(refused).strip()


@cases(0.1)
@given(
    name=st.sampled_from([*registry.names("protocol"), "", "x"]),
    changes=st.lists(
        st.tuples(
            st.sampled_from([*(f.name for f in fields(EvaluationProtocol)), "", "+", "x"]),
            st.one_of(
                st.sampled_from([*WORDS, "0.1,0.2", "1,2,3", "0,0", "none,none", "100000"]),
                st.text(max_size=5),
                st.integers().map(str),
                st.floats().map(str),
            ),
        ),
        max_size=3,
    ),
)
def test_a_protocol_is_settled_or_refused(name: str, changes: list[tuple[str, str]]) -> None:
    spec = "+".join([name, *(f"{field}={value}" for field, value in changes)])
    try:
        settled = registry.load_protocol(spec, "cub")
    except HarnessError as refused:
        assert str(refused).strip()
    else:
        again = registry.load_protocol(settled.name, "cub")
        assert again.identity() == settled.identity()


CLASSES = tuple(f"class_{number:02d}" for number in range(16))
SPLIT = {"train": ["0-3", 4, "class_05"], "validation": ["6-9"], "test": ["10-14", "class_15"]}


@cases(0.08)
@given(content=damaged_yaml(yaml.safe_dump(SPLIT).encode()))
@example(content=b"train: [0-99999999999999999999]\ntest: [1-2]\n")
def test_a_damaged_split_is_refused_or_has_no_class_twice(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "split.yaml"
    path.write_bytes(content)
    try:
        split = read_split(path, CLASSES, "mlrc")
    except HarnessError as refused:
        assert str(refused).strip()
    else:
        assert not set(split.trainval) & set(split.test)
        for fold in split.folds:
            assert not set(fold.train) & set(fold.val)
