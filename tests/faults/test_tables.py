"""Tables of a database that are damaged, or another program's, are a message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlalchemy
from conftest import study_of

from harness.cli import main
from harness.config import RunConfig
from harness.experiment import build_experiment
from harness.searching.loop import search

ALL = os.environ.get("HARNESS_FAULTS") == "every"

OF_OPTUNA = (
    *("studies", "trials", "trial_params", "trial_values", "trial_user_attributes"),
    *("study_user_attributes", "study_directions", "version_info", "alembic_version"),
)
OURS = ("harness_claims", "harness_workers")
# What somebody, or another program, may have done to each table.
DAMAGE = {
    **{f"no {name}": f"DROP TABLE {name} CASCADE" for name in (*OF_OPTUNA, *OURS)},
    **{
        f"foreign {name}": f"DROP TABLE {name} CASCADE; CREATE TABLE {name} (mine int NOT NULL)"
        for name in (*OF_OPTUNA, *OURS)
    },
    **{f"empty {name}": f"DELETE FROM {name}" for name in ("trial_user_attributes", *OURS)},
    "text of a trial": "UPDATE trial_user_attributes SET value_json = '{'",
    "other text of a trial": "UPDATE trial_user_attributes SET value_json = '[]'",
    "text of a study": "UPDATE study_user_attributes SET value_json = '{'",
    "another version": "UPDATE version_info SET schema_version = 1",
}
SAMPLE = [
    *("no trials", "foreign studies", "foreign harness_claims", "foreign harness_workers"),
    *("text of a trial", "text of a study"),
]


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE if ALL else SAMPLE)
def test_damaged_and_foreign_tables_are_no_bug(
    folder_config: RunConfig,
    postgres: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    damage: str,
) -> None:
    config = folder_config.updated({"storage": postgres, "trials": 1})
    search([config])
    with sqlalchemy.create_engine(postgres).begin() as connection:
        connection.execute(sqlalchemy.text(DAMAGE[damage]))
    (tmp_path / "config.yaml").write_text(config.updated({"trials": 2}).to_yaml())
    where = ["--runs-dir", config.runs_dir, "--storage", postgres]
    more = ["--config", str(tmp_path / "config.yaml"), "--storage", postgres]
    for command in (["show", *where], ["search", "--loss", config.loss, *more], ["retry", *where]):
        code = main(command)
        said = capsys.readouterr().err
        assert code in (0, 2) and "bug" not in said, said
        assert code == 0 or postgres.partition("?")[0].rpartition("/")[2] in said


def test_trials_say_what_they_were_trained_with_and_a_study_if_that_differs(
    folder_config: RunConfig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"training code": "0", "torch": "1.0"}
    search([folder_config.updated({"trials": 1})])
    runs = ["--runs-dir", folder_config.runs_dir]
    assert main(["show", *runs]) == 0
    assert "different versions" not in capsys.readouterr().out
    monkeypatch.setattr("harness.searching.study.trained_with", lambda: other)
    search([folder_config.updated({"trials": 2})])
    first, second = study_of(build_experiment(folder_config)).counted()
    assert second.user_attrs["trained_with"] == other
    assert main(["show", *runs]) == 0
    versions = f"torch {first.user_attrs['trained_with']['torch']} and 1.0"
    assert versions in capsys.readouterr().out.replace("\n", " ")
    results = ["--results-dir", folder_config.results_dir, "--reproductions", "1"]
    cache = ["--cache-dir", folder_config.cache_dir, "--workers", "1", "--device", "cpu"]
    assert main(["eval", *runs, *results, *cache]) == 0
    assert main(["verdict", "--results-dir", folder_config.results_dir, "--against", "none"]) == 0
    assert "trials of different versions" in capsys.readouterr().out
