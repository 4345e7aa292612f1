"""Records in pandas: a row per run, what two losses differ by, and which classes are hard.

python examples/read_records.py [TABLE]    # by default results/mlrc/glyphs-glyphnet

A record is plain JSON, so that nothing of the harness is needed to read it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

TABLE = Path(__file__).parents[1] / "results" / "mlrc" / "glyphs-glyphnet"


def read_records(table: Path) -> list[dict[str, Any]]:
    """Every test of a table; metrics that were asked for later have files of their own."""
    paths = sorted(path for path in table.glob("records/*/*.json") if ".metrics." not in path.name)
    return [json.loads(path.read_text()) for path in paths]


def runs(records: list[dict[str, Any]]) -> pd.DataFrame:
    """One row per run, with its scores on the test classes."""
    return pd.DataFrame(
        {
            "method": record["identity"]["method"],
            "kind": record["kind"],
            "repetition": record["repetition"],
            "validation": record["search"].get("validation"),
            **record["scores"]["concatenated"],
            "seconds": sum(fold["seconds"] for fold in record["folds"]),
            "commit": record["provenance"]["commit"],
        }
        for record in records
    )


def classes(records: list[dict[str, Any]], method: str) -> pd.Series:
    """MAP@R of each test class, mean over the runs of a method, hardest first."""
    scores = [
        record["per_class"]["concatenated"]["map_at_r"]
        for record in records
        if record["identity"]["method"] == method and record["kind"] == "reproduction"
    ]
    return pd.DataFrame(scores).astype(float).mean().sort_values()


def main(table: Path) -> None:
    records = read_records(table)
    frame = runs(records)
    trained = frame[frame["kind"] == "reproduction"]
    # A method that was searched twice has two sets of parameters: validation decides.
    best = trained.groupby("method")["validation"].transform("max")
    trained = trained[trained["validation"] == best]
    summary = trained.groupby("method")["map_at_r"].agg(["mean", "std", "count"])
    summary = summary.sort_values("mean", ascending=False)
    print(summary.round(4))

    # Runs of one repetition share their seeds, so that their differences are paired.
    first, second = summary.index[:2]
    scores = trained.pivot(index="repetition", columns="method", values="map_at_r")
    print(f"\n{first} - {second}, run by run:")
    print((scores[first] - scores[second]).round(4).to_string())

    print(f"\ntest classes that {first} finds hardest:")
    print(classes(records, first).head().round(4).to_string())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TABLE)
