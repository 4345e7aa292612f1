"""Tables of ours in a database, beside those of Optuna."""

from __future__ import annotations

import sqlalchemy
from sqlalchemy import Column, DateTime, String, Text
from sqlalchemy.dialects.mysql import MEDIUMTEXT

TABLES = sqlalchemy.MetaData()

# A row for each study: the process that has locked the row may claim a trial.
CLAIMS = sqlalchemy.Table("harness_claims", TABLES, Column("study", String(512), primary_key=True))

# A row for each worker at work, with the time of its last sign of life.
WORKERS = sqlalchemy.Table(
    "harness_workers",
    TABLES,
    Column("name", String(255), primary_key=True),
    Column("seen", DateTime(timezone=True), nullable=False),
)

# Copies of records, by their paths below the folders of runs and results.
COPIES = sqlalchemy.Table(
    "harness_records",
    TABLES,
    Column("path", String(512), primary_key=True),
    Column("content", Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb"), nullable=False),
)

# Which folder's workers do a piece of work, which is held as long as one of them lives.
LEASES = sqlalchemy.Table(
    "harness_leases",
    TABLES,
    Column("work", String(512), primary_key=True),
    Column("folder", String(64), nullable=False),
)
