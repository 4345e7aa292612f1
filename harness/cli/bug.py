"""What is left when nobody else has words for an error: a bug of ours, and a file to send."""

from __future__ import annotations

import json
import tempfile
import traceback

from harness.records.provenance import provenance
from harness.redact import redact_all


def report_bug(error: BaseException) -> str:
    """Write down all that helps to mend it, without passwords; what to tell the user."""
    said = redact_all(f"{type(error).__name__}: {error}").strip().partition("\n")[0]
    told = "".join(traceback.format_exception(error))
    report = redact_all(f"{json.dumps(provenance(), indent=1)}\n\n{told}")
    lines = [f"this is a bug in metric-harness: {said}"]
    try:
        # Not where the command works: that may be the very folder that makes trouble.
        with tempfile.NamedTemporaryFile(
            "w", prefix="metric-harness-bug-", suffix=".txt", delete=False, errors="replace"
        ) as file:
            file.write(report)
        lines.append(f"  the report: {file.name}")
        lines.append("  read it, then send it in a new issue; nothing that was finished is lost")
    except OSError:
        lines.append(report)
    return "\n".join(lines)
