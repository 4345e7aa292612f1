"""The verdict in plain words, as Markdown: no more is claimed than was shown."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd

from harness.judgement.compare import in_words, spell_p
from harness.judgement.ranks import Ranks, grouped, rank, rankable
from harness.judgement.search_luck import luck_in_words
from harness.judgement.stats import LEVEL, MIN_PAIRS
from harness.metrics.names import title_of
from harness.plain_text import counted, markdown_code, markdown_text, one_line
from harness.records.layout import spec_of_label
from harness.records.published import find_folder
from harness.records.rows import Row
from harness.tables.rendering import markdown_table, percent
from harness.verdicts.concatenation import concatenation_in_words
from harness.verdicts.gains import Gain, gains
from harness.verdicts.shared_settings import FAR_APART, apart_in_words, shared_in_words
from harness.verdicts.verdict import (
    Answer,
    Claim,
    JudgedTable,
    Outcome,
    Standing,
    Verdict,
    find_stored,
    judge,
    read_tables,
    stand,
)

HOW_TO_READ = (
    "Differences are points of MAP@R of the concatenated embeddings, on classes that nobody tuned "
    "on. A method is called better if both tests say so: paired over reproductions that share "
    f"their seeds (t-test, {100 * LEVEL:.0f} %, Holm over all comparisons under one protocol and "
    "trunk), and over draws of other test classes (bootstrap, 95 % interval). Below "
    f"{MIN_PAIRS} shared reproductions nothing is claimed. Neither test covers the search: all "
    "reproductions of a row share the parameters that one search found. Reasons to doubt are those "
    "that a table marks, and rates of the head that two searches found "
    f"{FAR_APART:.0f} times apart or more: the difference may be one of these."
)

DIGITS = 10  # of a commit

NOT_YET = "Not answered yet."


def write_verdict(
    method: str | None,
    results: Path,
    against: str | None,
    wanted: Callable[[Path], bool],
    problems: list[str],
    full_name: Callable[[str], str],
) -> str:
    """All that tables say: about the papers' claims, or about one method.

    Args:
        method: a row, an alias, or one's own loss, as its file or without the hash of that.
        against: folder of other results, or `none`; None takes those that came with the package.
        wanted: whether a table counts, by its folder.
        problems: gets what is wrong with records, which are then left out.
        full_name: of what may be an alias or a loss file; asked for names without records only.
    """
    tables = read_tables(results, find_stored(results, against), problems, wanted)
    if method is not None:
        return standings_to_markdown(stand(tables, method, full_name))
    numbers = find_folder(results)
    verdicts = [judge(group) for group in grouped(tables)]
    answers = [[a for claim in verdict.systems for a in claim.answers] for verdict in verdicts]
    left = [gains(some, numbers) for some in answers]
    return to_markdown(list(zip(verdicts, left, strict=True)))


def to_markdown(verdicts: Sequence[tuple[Verdict, Sequence[Gain]]]) -> str:
    """Everything that was asked of every group of tables.

    Args:
        verdicts: each with what is left of the papers' gains.
    """
    lines = ["# Verdict", "", HOW_TO_READ]
    for verdict, left in verdicts:
        lines += ["", *_group(verdict, left)]
    return "\n".join(lines) + "\n"


def _group(verdict: Verdict, left: Sequence[Gain]) -> list[str]:
    claims = [*verdict.systems, verdict.against_old, verdict.against_start]
    parts = [
        [f"## {_title(verdict.tables)}"],
        _tables(verdict),
        [
            *(f"- {claim.question} {_in_short(claim)}" for claim in verdict.systems),
            f"- {verdict.against_old.question} {_old_in_short(verdict.against_old)}",
            f"- {verdict.against_start.question} {_start_in_short(verdict.against_start)}",
        ],
        *map(_claim, verdict.systems),
        _against_old(verdict.against_old),
        _gains(left),
        _against_start(verdict),
        _ranks(verdict.ranks, verdict.tables, "###") if verdict.ranks else [],
        _missing(claims),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part).splitlines()


def _title(tables: Sequence[JudgedTable]) -> str:
    where = f"{_listed([table.dataset for table in tables])}, {tables[0].trunk}"
    return f"{markdown_text(where)}, protocol {markdown_code(tables[0].protocol)}"


def _tables(verdict: Verdict) -> list[str]:
    counts = _listed(
        [f"{counted(len(table.trained), 'method')} on {table.dataset}" for table in verdict.tables]
    )
    tests = f" Comparisons that the p-values are corrected for: {verdict.tests}."
    lines = [f"{counts}.{tests if verdict.tests else ''}"]
    for table in verdict.tables:
        if table.left_out:
            lines.append(f"{table.left_out:,} images of {table.dataset} are missing or broken.")
        commits = table.frame.groupby("commit").groups
        if len(commits) > 1:
            of_each = [
                f"{str(commit)[:DIGITS] or 'none'}: {', '.join(rows)}"
                for commit, rows in commits.items()
            ]
            lines.append(f"Rows of {table.dataset} by commit of the code: {'; '.join(of_each)}.")
        lines.append(concatenation_in_words(table.dataset, table.frame.reset_index()))
        lines += shared_in_words(table.dataset, table.rows.values())
    lines.append(luck_in_words((table.dataset, table.searches) for table in verdict.tables))
    return [markdown_text(line) for line in lines if line]


def _in_short(claim: Claim) -> str:
    """The answers without their tests: method, rival, then what each data set says."""
    pairs: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for answer in claim.answers:
        pairs[answer.method, answer.rival][_in_brief(answer)].append(answer.table.dataset)
    parts = []
    for (method, rival), answers in pairs.items():
        said = [f"{brief} ({', '.join(names)})" for brief, names in answers.items()]
        parts.append(f"{method} against {rival}: {'; '.join(said)}.")
    return markdown_text(" ".join(parts)) or NOT_YET


def _old_in_short(claim: Claim) -> str:
    parts = []
    for table, answers in _by_table(claim).items():
        said = _any_better(answers)
        parts.append(f"{table.dataset}: {said}; the best old one is {answers[0].rival}.")
    return markdown_text(" ".join(parts)) or NOT_YET


def _any_better(answers: Sequence[Answer]) -> str:
    """Whether any method is better than the best old one: "no" only where all were tested."""
    if better := _better(answers):
        return f"yes: {better}"
    untested = any(answer.outcome is Outcome.UNTESTED for answer in answers)
    return Outcome.UNTESTED.value if untested else "no"


def _better(answers: Sequence[Answer]) -> str:
    """The methods that are better than the best old one."""
    luck = " (by no more than searches of one loss differ by)"
    better = [answer for answer in answers if answer.outcome is Outcome.YES]
    return _listed([f"{answer.method}{luck * _within_luck(answer)}" for answer in better])


def _start_in_short(claim: Claim) -> str:
    parts = [
        f"{a.table.dataset}: {percent(a.table.score(a.rival))} of the best row's "
        f"{percent(a.table.score(a.method))}."
        for a in claim.answers
    ]
    return markdown_text(" ".join(parts)) or NOT_YET


def _by_table(claim: Claim) -> dict[JudgedTable, list[Answer]]:
    found: dict[JudgedTable, list[Answer]] = defaultdict(list)
    for answer in claim.answers:
        found[answer.table].append(answer)
    return found


def _claim(claim: Claim) -> list[str]:
    if not claim.answers:  # said in short; the commands at the end name what is missing
        return []
    lines = [f"### {claim.question}", ""]
    lines += [line for answer in claim.answers for line in _answer(answer)]
    return [*lines, *_without(claim)]


def _without(claim: Claim) -> list[str]:
    return [
        _item(f"Not answered on {table.dataset}: no records of {', '.join(methods)}.")
        for table, methods in _missing_from([claim]).items()
    ]


def _missing_from(claims: Iterable[Claim]) -> dict[JudgedTable, list[str]]:
    found: dict[JudgedTable, list[str]] = defaultdict(list)
    for claim in claims:
        for table, method in claim.missing:
            if method not in found[table]:
                found[table].append(method)
    return found


def _answer(answer: Answer) -> list[str]:
    return [
        f"- **{_said(answer)}** {_in_words(answer)}",
        *_doubts(answer.table, answer.method, answer.rival, more=_apart(answer)),
    ]


def _apart(answer: Answer) -> list[str]:
    rows = answer.table.rows
    said = apart_in_words(rows[answer.method], rows[answer.rival])
    return [said] if said else []


def _within_luck(answer: Answer) -> bool:
    """Whether what both tests call a difference may still be one of the searches."""
    shown = answer.outcome in (Outcome.YES, Outcome.WORSE)
    return shown and abs(answer.difference) <= answer.table.luck


def _in_brief(answer: Answer) -> str:
    luck = ", by no more than searches of one loss differ by" if _within_luck(answer) else ""
    return f"{answer.outcome.value}{luck}"


def _in_words(answer: Answer) -> str:
    luck = " No more than what searches of one loss, or almost one, differ by here."
    return markdown_text(f"{in_words(answer.comparison)}{luck if _within_luck(answer) else ''}")


def _item(text: str) -> str:
    return f"- {markdown_text(text)}"


def _said(answer: Answer) -> str:
    return _sentence(answer.outcome.value)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _doubts(table: JudgedTable, *names: str, more: Sequence[str] = ()) -> list[str]:
    """Why these rows may show less than the methods can do, or more."""
    doubted = [
        f"{name} ({', '.join(reasons)})" for name in names if (reasons := table.doubts(name))
    ]
    doubted += more
    said = f"Reasons to doubt: {'; '.join(doubted)}."
    return [f"  {_item(said)}"] if doubted else []


def _against_old(claim: Claim) -> list[str]:
    if not claim.answers:
        return []
    lines = [f"### {claim.question}", ""]
    for table, answers in _by_table(claim).items():
        best, verdict = answers[0].rival, _sentence(_any_better(answers))
        best_old = f"The best of the old ones is {best}, {percent(*table.interval(best))}."
        lines.append(
            f"- **{markdown_text(f'{table.dataset}: {verdict}')}** {markdown_text(best_old)}"
        )
        lines += [f"  - {_in_words(answer)}" for answer in answers]
        apart = [said for answer in answers for said in _apart(answer)]
        lines += _doubts(table, best, *(answer.method for answer in answers), more=apart)
    return lines


def _share(gain: Gain) -> str:
    """Of the published gain; of too few reproductions none is claimed."""
    if not gain.tested or gain.published <= 0:
        return ""
    return f"{100 * gain.ours / gain.published:.0f} %"


def _gains(left: Sequence[Gain]) -> list[str]:
    if not left:  # no paper prints a pair that these tables have, on the same data set
        return []
    lines = ["### How much of the papers' gains is left?", ""]
    frame = pd.DataFrame(
        [
            {
                "data set": gain.dataset,
                "method": f"{gain.method} over {gain.rival}",
                "measured by": title_of(gain.metric),
                "published": f"{gain.published:+.2f}",
                "here": f"{gain.ours:+.2f}",
                "left": _share(gain),
                "source": gain.source,
            }
            for gain in left
        ]
    )
    return [
        *lines,
        *markdown_table(frame),
        "",
        "Points of the paper's own tables and of these. Network, training and protocol are not the "
        "papers', so this says what is left under equal conditions for all, not who erred. A paper "
        "may have gained by pooling, normalisation, batches and head together; these rows differ "
        "by their losses and what belongs to them.",
    ]


def _against_start(verdict: Verdict) -> list[str]:
    claim = verdict.against_start
    if not claim.answers:
        return []
    lines = [f"### {claim.question}", ""]
    for answer in claim.answers:
        table, start = answer.table, answer.rival
        below = [name for name in table.trained if table.score(name) <= table.score(start)]
        lines.append(
            _item(
                f"{table.dataset}: {percent(table.score(start))} without any training ({start}); "
                f"the best row, {answer.method}, has {percent(*table.interval(answer.method))}. "
                f"{in_words(answer.comparison)}"
            )
        )
        if below:
            lines.append("  " + _item(f"no better than it: {', '.join(below)}."))
    return lines


def _ranks(ranks: Ranks, tables: Sequence[JudgedTable], level: str, where: str = "") -> list[str]:
    ranked = rankable(tables)
    names = _listed([table.dataset for table in ranked])
    listed = ", ".join(f"{method} {mean:.1f}" for method, mean in ranks.by_method.items())
    lines = [f"{level} Average ranks over {markdown_text(names)}{where}", ""]
    lines.append(markdown_text(f"{listed}."))
    if any(len(table.trained) > len(ranks.methods) for table in ranked):
        lines.append(f"Ranked among the {len(ranks.methods)} methods that all of these have.")
    if others := [table.dataset for table in tables if table not in ranked]:
        lines.append(markdown_text(f"Not ranked, for want of shared methods: {_listed(others)}."))
    if ranks.datasets == 2:
        return [*lines, "Of two tables no critical difference is given."]
    said = f"Ranks closer than {ranks.critical:.1f} are not told apart (Nemenyi, {LEVEL})."
    return [*lines, said]


def _missing(claims: Sequence[Claim]) -> list[str]:
    """The commands that would answer what is not answered."""
    missing, untested = _missing_from(claims), _untested_in(claims)
    tables = dict.fromkeys([*missing, *untested])
    if not tables:
        return []
    lines = ["### What would answer the rest", "", "```"]
    for table in tables:
        dataset = spec_of_label(table.dataset)
        where = ["--dataset", dataset, "--protocol", table.protocol, "--trunk", table.trunk]
        where += ["--allow-missing"] if table.left_out else []
        more = ["--reproductions", str(MIN_PAIRS)]
        again = untested.get(table, [])
        searched = [name for name in again if table.rows[name][-1].search.get("trials")]
        fixed = [name for name in again if name not in searched]
        for command, names, flags in (
            ("search", missing.get(table), where),
            ("eval", missing.get(table), where),
            ("eval", searched, [*where, *more]),
        ):
            if names:  # as a shell takes it, also where a name has blanks
                words = ["harness", command, "--loss", *names, *flags]
                lines.append(one_line(shlex.join(words)))
        lines += dict.fromkeys(_once_more(table.rows[name]) for name in fixed)
    return [*lines, "```"]


def _once_more(row: Row) -> str:
    """The command that made a row at fixed parameters, for as many reproductions as it takes."""
    made = re.sub(r" --reproductions[ =]\S+", "", str(row[-1].provenance["command"]))
    return one_line(f"{made} --reproductions {MIN_PAIRS}")


def _untested_in(claims: Iterable[Claim]) -> dict[JudgedTable, list[str]]:
    """The methods of each table that have too few reproductions for an answer."""
    found: dict[JudgedTable, list[str]] = defaultdict(list)
    for answer in (answer for claim in claims for answer in claim.answers):
        table = answer.table
        if answer.outcome is not Outcome.UNTESTED:
            continue
        for name in (answer.method, answer.rival):
            few = name in table.trained and len(table.rows[name]) < MIN_PAIRS
            if few and name not in found[table]:
                found[table].append(name)
    return found


def standings_to_markdown(standings: Sequence[Standing]) -> str:
    """One method against every row that was searched before."""
    method = markdown_text(standings[0].method)
    lines = [f"# {method} against those that were searched", ""]
    lines += [HOW_TO_READ]
    for standing in standings:
        lines += ["", *_standing(standing)]
    for tables in grouped(standing.table for standing in standings):
        if ranks := rank(tables):
            where = f", {markdown_text(tables[0].trunk)}, {markdown_code(tables[0].protocol)}"
            lines += ["", *_ranks(ranks, tables, "##", where)]
    return "\n".join(lines) + "\n"


def _standing(standing: Standing) -> list[str]:
    table, method = standing.table, standing.method
    place, count = table.trained.index(method) + 1, len(table.trained)
    trained = [answer for answer in standing.answers if answer.rival in table.trained]
    lines = [
        f"## {_title([table])}",
        "",
        f"Rank {place} of {count}, MAP@R {percent(*table.interval(method))} over "
        f"{counted(len(table.rows[method]), 'reproduction')}. {markdown_text(_counts(trained))}",
        "",
    ]
    by_rival = {answer.rival: answer for answer in standing.answers}
    for rival, role in standing.must_beat.items():
        if rival in by_rival:
            answer = by_rival[rival]
            against = markdown_text(f"Against {role}:")
            lines.append(f"- {against} **{_said(answer)}** {_in_words(answer)}")
            lines += _doubts(table, rival, more=_apart(answer))
        else:
            unknown = f"Against {role}: not answered, there are no records of {rival}."
            lines.append(_item(unknown))
    lines += [line.strip() for line in _doubts(table, method)]
    if luck := luck_in_words([(table.dataset, table.searches)]):
        lines.append(_item(luck))
    return [*lines, "", *markdown_table(_against_all(standing))] if standing.answers else lines


def _counts(answers: Sequence[Answer]) -> str:
    def with_outcome(*wanted: Outcome) -> str:
        return _listed([a.rival for a in answers if a.outcome in wanted]) or "none"

    if not answers:
        return "There is no other method to hold it against."
    untested = [a for a in answers if a.outcome is Outcome.UNTESTED]
    if len(untested) == len(answers):
        return "Nothing is claimed: it shares too few reproductions with the other rows."
    open_still = [a for a in answers if a.outcome not in (Outcome.YES, Outcome.WORSE)]
    return f"Better than {with_outcome(Outcome.YES)}; worse than {with_outcome(Outcome.WORSE)}" + (
        "; no order is shown with the others." if open_still else "."
    )


def _against_all(standing: Standing) -> pd.DataFrame:
    table = standing.table
    return pd.DataFrame(
        [
            {
                "against": answer.rival,
                "MAP@R": percent(*table.interval(answer.rival)),
                "difference": _difference(answer),
                "over classes": _over_classes(answer),
                "p": _p_value(answer),
                "n": str(answer.comparison.concatenated.n),
                "better?": _in_brief(answer),
            }
            for answer in standing.answers
        ]
    )


def _difference(answer: Answer) -> str:
    paired = answer.comparison.concatenated
    if not paired.n:
        return ""
    interval = f" ± {100 * paired.half_width:.2f}" if paired.n > 1 else ""
    return f"{100 * answer.difference:+.2f}{interval}"


def _over_classes(answer: Answer) -> str:
    ends = answer.comparison.classes
    if ends is None:
        return ""
    low, high = ends if answer.comparison.ahead == answer.method else (-ends[1], -ends[0])
    return f"{100 * low:+.2f} to {100 * high:+.2f}"


def _p_value(answer: Answer) -> str:
    p_value = answer.comparison.concatenated.t_test
    return "" if p_value is None else spell_p(p_value).removeprefix("= ")


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
