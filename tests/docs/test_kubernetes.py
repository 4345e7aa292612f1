"""The manifests fit the schema of the Kubernetes API, and their commands are ours."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from documents import ROOT, flags_in

from harness.cli import app

FOLDER = ROOT / "examples" / "kubernetes"
MANIFESTS = {
    f"{path.name}: {found['kind']}": found
    for path in sorted(FOLDER.glob("*.yaml"))
    for found in yaml.safe_load_all(path.read_text())
}
JOBS = [found for found in MANIFESTS.values() if found["kind"] == "Job"]


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_fits_the_schema_of_the_api(name: str) -> None:
    """With unknown fields refused, as a misspelt one would be ignored by a cluster."""
    schema = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    schema.validate(MANIFESTS[name], schema.latest_version(), strict=True)


def pod_of(job: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def test_the_jobs_are_indexed_and_call_commands_that_parse() -> None:
    assert {job["metadata"]["name"] for job in JOBS} == {"harness-search", "harness-eval"}
    for job in JOBS:
        assert job["spec"]["completionMode"] == "Indexed"
        _, container = pod_of(job)
        (line,) = container["args"]
        name, *words = shlex.split(line.partition("exec harness ")[2])
        given = flags_in(typer.main.get_command(app).commands[name], name, words)  # type: ignore[attr-defined]
        assert given["dataset"] == "cub"


def test_every_mounted_volume_and_the_address_of_the_database_exist() -> None:
    service = MANIFESTS["database.yaml: Service"]
    for job in JOBS:
        pod, container = pod_of(job)
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert volumes == {mount["name"] for mount in container["volumeMounts"]}
        values = {one["name"]: one["value"] for one in container["env"]}
        assert f"@{service['metadata']['name']}/" in values["HARNESS_STORAGE"]
        assert ":" not in values["HARNESS_STORAGE"].partition("//")[2].partition("@")[0]


def test_the_dockerfile_copies_and_runs_what_there_is() -> None:
    text = (ROOT / "Dockerfile").read_text()
    (script,) = re.findall(r"/source/(\S+\.sh)", text)
    assert (ROOT / script).is_file()
    for argument in re.findall(r"--build-arg (\w+)=", text):
        assert f"\nARG {argument}=" in text


def test_the_installation_refuses_a_variant_that_there_is_not(tmp_path: Path) -> None:
    command = ["sh", str(FOLDER / "install.sh"), str(tmp_path), "gpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "VARIANT must be cpu or cuda, not gpu\n")
