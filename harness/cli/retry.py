"""`harness retry`: failed trials return to their search."""

from __future__ import annotations

from collections import Counter

from harness.cli.display import say
from harness.cli.options import Given, takes_config
from harness.cli.show import asked_for


@takes_config("retry")
def retry(given: Given) -> None:
    """Queue failed trials again, with the same hyper-parameters.

    Use it after you have fixed the cause: a disk, a driver, an image. Finished folds are kept. An
    edited loss file counts as a different loss and has a separate search.

    $ harness retry proxyanchor --dataset glyphs
    """
    from harness.searching.study import retry_failed

    found = asked_for(given)
    for one in found:
        opened = one.storage()
        with one.study(opened) as study:
            reasons = retry_failed(study, opened)
        say(f"{one.folder}: {len(reasons)} failed trials will be run again")
        for reason, times in Counter(reasons).most_common():
            say(f"  {times} times: {reason}")
    say("next: the same harness search as before")
