"""`harness retry`: failed trials return to their search."""

from __future__ import annotations

from collections import Counter

from harness.cli import options
from harness.cli.display import say
from harness.cli.options import read_values
from harness.cli.show import Studies, asked_for


def retry(
    studies: Studies = None,
    loss: options.Loss = None,
    dataset: options.Dataset = None,
    protocol: options.Protocol = None,
    trunk: options.Trunk = None,
    storage: options.Storage = None,
    runs_dir: options.RunsDir = None,
) -> None:
    """Return failed trials to the search, which runs them again with the same parameters.

    For when what they failed of has been mended: a disk, a driver, an image. Finished folds are
    kept. (A loss file that was edited is another loss, with a search of its own.)

    $ harness retry proxyanchor --dataset glyphs
    """
    values = read_values(None, None, locals())
    from harness.searching.study import retry_failed

    found = asked_for(studies, loss, values)
    for one in found:
        opened = one.storage()
        with one.study(opened) as study:
            reasons = retry_failed(study, opened)
        say(f"{one.folder}: {len(reasons)} failed trials will be run again")
        for reason, times in Counter(reasons).most_common():
            say(f"  {times} times: {reason}")
    say("next: the same harness search as before")
