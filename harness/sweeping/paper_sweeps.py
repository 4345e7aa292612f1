"""The papers' own sweeps and ablations, each by name: what varies, under what, what was printed.

Numbers of tables are those of results/published; numbers of plots stand here, read off by eye.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import registry
from harness.errors import unknown
from harness.protocols.protocol import with_change
from harness.records.published import find_folder, read
from harness.sweeping.axes import VARIANT, Axis, make_axis
from harness.sweeping.run import Sweep
from harness.tables.sweeps import PublishedValue

N, RATIO, REGULARISER = "params.proxies_per_class", "params.ratio", "params.reg_weight"
DIMENSION, BATCH, POOLING = "protocol.embedding_size", "protocol.batch_size", "protocol.pooling"
LAMBDA, POOL = "params.reference_weight", "params.pool_size"

Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Cited:
    """Rows of a table that results/published holds.

    Attributes:
        rows: method as printed -> values of the points that it is of.
    """

    file: str
    paper: str
    table: str
    rows: Mapping[str, Changes]
    metrics: Sequence[str] = ("recall_at_1",)


@dataclass(frozen=True)
class Figure:
    """One experiment of a paper.

    Attributes:
        paper: name of `harness tables`.
        summary: what it shows, and where in the paper.
        test: whether the paper judges by the test classes.
        metrics: on the test classes, beside those of every test.
        settings: of the config, the same for all points.
        read_off: of a plot: values of a point -> metric -> number in percent.
        cited: of tables.
    """

    name: str
    paper: str
    summary: str
    dataset: str
    protocol: str
    losses: tuple[str, ...] = ()
    over: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    variants: Mapping[str, Changes] = field(default_factory=dict)
    test: bool = True
    seeds: int = 1
    metrics: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    read_off: Sequence[tuple[Changes, Mapping[str, float]]] = ()
    cited: Sequence[Cited] = ()


def _curve(
    axis: str, values: Sequence[Any], numbers: Sequence[float], **more: Any
) -> list[tuple[Changes, Mapping[str, float]]]:
    """R@1 along an axis, at fixed values of others."""
    fixed = more.pop("at", {})
    return [
        ({axis: value, **fixed}, {"recall_at_1": number})
        for value, number in zip(values, numbers, strict=True)
    ]


def _pairs(
    variant: str, dataset: str, numbers: Sequence[tuple[float, float]]
) -> list[tuple[Changes, Mapping[str, float]]]:
    """MAP@R of the separated and the concatenated embeddings, by size of the batch."""
    return [
        (
            {VARIANT: variant, "dataset": dataset, BATCH: batch},
            {"map_at_r separated": separated, "map_at_r concatenated": together},
        )
        for batch, (separated, together) in zip((16, 32, 64, 128), numbers, strict=True)
    ]


# ProxyGML.
PAPER = {"preset": "paper"}
GML: dict[str, Any] = {
    "paper": "proxygml",
    "dataset": "cars",
    "protocol": "classic-proxygml",
    "settings": PAPER,
}
RATIOS = (
    *(0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1),
    *(0.15, 0.2, 0.25, 0.3, 0.4, 0.6, 0.8, 1.0),
)
SOME_N = (1, 4, 8, 12, 20, 30)


def _modules(selection: bool, masked: bool, regulariser: bool) -> Changes:
    return {
        "params.positive_mask": selection,
        "params.masked_softmax": masked,
        REGULARISER: 0.3 if regulariser else 0.0,
    }


MODULES = {
    "none": (_modules(False, False, False), 47.3, 52.1),
    "S": (_modules(True, False, False), 83.3, 69.6),
    "M": (_modules(False, True, False), 66.1, 54.9),
    "L": (_modules(False, False, True), 81.7, 67.1),
    "ML": (_modules(False, True, True), 82.6, 68.8),
    "SL": (_modules(True, False, True), 84.5, 71.6),
    "SM": (_modules(True, True, False), 84.0, 70.7),
    "SML": (_modules(True, True, True), 85.5, 72.4),
}
SIZES = (64, 384, 512)
BY_SIZE = {"cub": (59.4, 65.2, 66.6), "cars": (78.9, 84.5, 85.5), "sop": (76.2, 77.9, 78.0)}

# Proxy Anchor as the ProxyGML supplement runs it, with and without what its paper adds.
ANCHOR: dict[str, Any] = {
    "loss": "proxyanchor",
    "preset": "mlrc",
    "protocol.optimizer_eps": 1e-8,
}
SKILLS: dict[str, Any] = {
    POOLING: "avg+max",
    "protocol.warmup_epochs": 1,
    "protocol.optimizer": "adamw",
}
ANCHORS: dict[str, Changes] = {
    "ProxyGML (batch 32)": {"loss": "proxygml"},
    "Proxy-Anchor (batch 32; three skills removed)": {**ANCHOR, BATCH: 32},
    "Proxy-Anchor (batch 32; three skills)": {**ANCHOR, **SKILLS, BATCH: 32},
    "Proxy-Anchor (batch 180; three skills removed)": {**ANCHOR, BATCH: 180},
}

PROXYGML = (
    Figure(
        name="proxygml-proxies-ratio",
        summary="proxies per class N, at three ratios r of selected proxies (slides)",
        losses=("proxygml",),
        over={N: range(1, 31), RATIO: (0.05, 0.5, 1.0)},
        read_off=[
            *_curve(N, SOME_N, (80, 82, 84.4, 85.5, 84, 83), at={RATIO: 0.05}),
            *_curve(N, SOME_N, (46, 59, 74, 81, 83, 82.5), at={RATIO: 1.0}),
        ],
        **GML,
    ),
    Figure(
        name="proxygml-ratio",
        summary="ratio r at 12 proxies per class (slides)",
        losses=("proxygml",),
        over={RATIO: RATIOS},
        read_off=_curve(
            RATIO,
            RATIOS,
            (
                *(44, 74, 84, 84.6, 85.5, 84.8, 84.7, 84.7),
                *(84, 83, 82.4, 82.3, 81.2, 79.8, 79.4, 79),
            ),
        ),
        **{**GML, "settings": {**PAPER, "params": {"proxies_per_class": 12}}},
    ),
    Figure(
        name="proxygml-map",
        summary="N x r as a map (supplement Fig. 1; no numbers, best at 12 and 0.05)",
        losses=("proxygml",),
        over={N: SOME_N, RATIO: (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)},
        **GML,
    ),
    Figure(
        name="proxygml-lambda",
        summary="weight of the regulariser (supplement Fig. 2; no numbers, 'insensitive')",
        losses=("proxygml",),
        over={REGULARISER: (0.0, 0.1, 0.3, 0.5, 1.0)},
        **GML,
    ),
    Figure(
        name="proxygml-modules",
        summary="S: own proxies first, M: masked softmax, L: regulariser (slides)",
        losses=("proxygml",),
        variants={name: changes for name, (changes, _, _) in MODULES.items()},
        metrics=("nmi",),
        read_off=[
            ({VARIANT: name}, {"recall_at_1": recall, "nmi": nmi})
            for name, (_, recall, nmi) in MODULES.items()
        ],
        **GML,
    ),
    Figure(
        name="proxygml-dimension",
        summary="size of the embedding (slides)",
        losses=("proxygml",),
        over={"dataset": tuple(BY_SIZE), DIMENSION: SIZES},
        read_off=[
            one
            for dataset, numbers in BY_SIZE.items()
            for one in _curve(DIMENSION, SIZES, numbers, at={"dataset": dataset})
        ],
        **GML,
    ),
    Figure(
        name="proxygml-anchor",
        summary="Proxy Anchor without what its paper adds (supplement Table 2)",
        over={"dataset": ("cub", "cars", "sop")},
        variants=ANCHORS,
        cited=[
            Cited(
                "classic_retrieval_tables.csv",
                "proxygml",
                "supplement Table 2",
                {name: {VARIANT: name} for name in ANCHORS},
            )
        ],
        **GML,
    ),
)

# HPL.
HPL: dict[str, Any] = {"paper": "hpl", "protocol": "classic-hpl"}
NCA = {
    "loss": "proxynca",
    "preset": "mlrc",
    "params.softmax_scale": 32.0,
    "params.loss_lr": 1e-2,
}
NCA_HPL = {"loss": "hpl-nca", "preset": "paper", "params.scale_fine": 32.0}
NCA_GIVEN = {**NCA_HPL, "loss": "hpl-nca-gt"}


def _coarse(*counts: int) -> dict[str, Changes]:
    return {f"HPL-NCA ({n} coarse)": {**NCA_HPL, "params.num_coarse": n} for n in counts}


def _coarse_figure(dataset: str, given: int, counts: Sequence[int], table: str) -> Figure:
    variants = {
        "Proxy-NCA": NCA,
        f"HPL-NCA-GT ({given} coarse)": NCA_GIVEN,
        **_coarse(*counts),
    }
    file, named = "classic_retrieval_tables.csv", {name: {VARIANT: name} for name in variants}
    return Figure(
        name=f"hpl-coarse-{dataset}",
        summary=f"coarse proxies, and superclasses instead (supplement {table})",
        dataset=dataset,
        variants=variants,
        cited=[Cited(file, "hpl", f"supplement {table}", named)],
        **HPL,
    )


INTERVALS = {f"T={n}": {**NCA_HPL, "params.update_every": n} for n in (10, 20, 40, 80)}
HPL_FIGURES = (
    Figure(
        name="hpl-interval",
        summary="T steps between clusterings, 10 coarse proxies (supplement Fig. 2)",
        dataset="cars",
        variants={"Proxy-NCA": NCA, **INTERVALS},
        cited=[
            Cited(
                "classic_retrieval_tables.csv",
                "hpl",
                "supplement Fig. 2",
                {f"HPL-NCA (10 coarse; {name})": {VARIANT: name} for name in INTERVALS},
            ),
            Cited(
                "classic_retrieval_tables.csv",
                "hpl",
                "supplement section 2.1",
                {"Proxy-NCA": {VARIANT: "Proxy-NCA"}},
            ),
        ],
        **HPL,
    ),
    _coarse_figure("sop", 12, (12, 100, 500), "Table 3"),
    _coarse_figure("inaturalist", 48, (48, 500), "Table 4"),
)

# CCP.
CCP: dict[str, Any] = {"paper": "ccp", "dataset": "cub"}
ABLATION: dict[str, Any] = {**CCP, "protocol": "ablation-ccp", "test": False}


def _memory(dataset: str, small: int, large: int) -> Figure:
    return Figure(
        name=f"ccp-memory-{dataset}",
        paper="ccp",
        summary="sizes S and L of a cross-batch memory (supplement 2.1; in the main tables)",
        dataset=dataset,
        protocol="mlrc-ccp",
        losses=("c2-xbm",),
        over={"params.memory_size": (small, large)},
        settings={"params": {"start": 1000}},
    )


CCP_FIGURES = (
    Figure(
        name="ccp-batch-size",
        summary="size of the batch, 4 images per class (supplement Fig. 4)",
        protocol="mlrc-ccp",
        seeds=3,
        variants={
            "C2": {"loss": "c2"},
            # With more than one proxy CUB would lie above the figure.
            "C2-CCP": {"loss": "ccp-c2", N: 1, POOL: 1},
        },
        over={"dataset": ("cub", "cars"), BATCH: (16, 32, 64, 128)},
        read_off=[
            *_pairs("C2", "cub", ((18.6, 23.2), (21.0, 26.5), (21.2, 26.4), (21.6, 26.8))),
            *_pairs("C2-CCP", "cub", ((21.9, 27.0), (22.3, 27.5), (22.1, 27.5), (22.2, 27.5))),
            *_pairs("C2", "cars", ((14.3, 21.2), (17.2, 24.7), (18.1, 25.9), (18.2, 26.3))),
            *_pairs("C2-CCP", "cars", ((18.3, 26.1), (18.4, 26.3), (18.5, 26.4), (18.5, 26.5))),
        ],
        **CCP,
    ),
    Figure(
        name="ccp-lambda-proxies",
        summary="weight of the reference x proxies, validated (supplement Fig. 3; best 2e-4 and 7)",
        losses=("ccp-c2",),
        over={
            LAMBDA: (1e-12, 1e-8, 1e-5, 2e-4, 1e-3, 1e-2, 1e-1, 1e2),
            N: (1, 4, 7, 8, 12, 16),
        },
        settings={"params": {"pool_size": 16}},
        **ABLATION,
    ),
    Figure(
        name="ccp-proxies-pool",
        summary="proxies x images to pick each class's from, validated (Fig. 5; no numbers)",
        losses=("ccp-c2",),
        over={N: (1, 2, 4, 8, 12), POOL: (1, 4, 8, 12, 16)},
        **ABLATION,
    ),
    _memory("cub", 96, 800),
    _memory("cars", 96, 800),
    _memory("sop", 12800, 44800),
    _memory("inshop", 3200, 12800),
)

# DRML.
DRML: dict[str, Any] = {"paper": "drml", "dataset": "cub", "protocol": "classic-drml"}
README_ROWS = {
    ("PA", "cub"): (67.3, 77.7, 85.7, 91.4, 68.7),
    ("PA", "cars"): (84.4, 90.7, 94.3, 96.8, 69.7),
    ("DRML-PA", "cub"): (68.7, 78.6, 86.3, 91.6, 69.3),
    ("DRML-PA", "cars"): (86.9, 92.1, 95.2, 97.4, 72.1),
}
RECALLS = tuple(f"recall_at_{k}" for k in (1, 2, 4, 8))
DRML_FIGURES = (
    Figure(
        name="drml-groups",
        summary="number of groups K (main paper; no numbers)",
        losses=("drml-pa",),
        over={"params.groups": (1, 2, 4, 8)},
        **DRML,
    ),
    Figure(
        name="drml-weights",
        summary="weights of the output's and the reconstruction's loss (main paper; no numbers)",
        losses=("drml-pa",),
        over={"params.repre_weight": (0.1, 1.0, 10.0), "params.recon_weight": (0.1, 1.0, 10.0)},
        **DRML,
    ),
    Figure(
        name="drml-anchor",
        summary="Proxy Anchor with and without DRML (README of the authors' code)",
        variants={
            "PA": {"loss": "proxyanchor", "protocol.lr": 1e-4, "protocol.trunk_lr": 1e-4},
            "DRML-PA": {"loss": "drml-pa"},
        },
        over={"dataset": ("cub", "cars")},
        metrics=(*RECALLS, "nmi"),
        read_off=[
            (
                {VARIANT: variant, "dataset": dataset},
                dict(zip((*RECALLS, "nmi"), numbers, strict=True)),
            )
            for (variant, dataset), numbers in README_ROWS.items()
        ],
        **DRML,
    ),
)

# ProxyNCA++. What each of its parts is without.
NCAPP: dict[str, Any] = {
    "paper": "proxynca++",
    "dataset": "cub",
    "protocol": "two_stage",
    "seeds": 5,
    "settings": PAPER,
}
WITHOUT: dict[str, Changes] = {
    "scale": {"params.inverse_temperature": 1.0},
    "max": {POOLING: "avg"},
    "norm": {"protocol.norm": "none"},
    "cbs": {"protocol.batches": "shuffled", "protocol.samples_per_class": 1},
    "fast": {"params.loss_lr": 4e-3},  # the network's
    "prob": {"params.denominator": "negatives"},
}


def _with(parts: Iterable[str]) -> Changes:
    """The paper's loss without all of its parts but some."""
    there = list(parts)
    changes: dict[str, Any] = {}
    for part, off in WITHOUT.items():
        changes |= {} if part in there else off
    return changes


DROPPED = {"full": "ProxyNCA++ (Emb: 2048)"} | {
    f"without {part}": f"ProxyNCA++ -{part}" for part in WITHOUT
}


def _ladder(number: int, part: str, steps: Sequence[str], off: str, on: str) -> Figure:
    """A table that adds part after part, each with and without one of them."""
    variants, printed = {}, {}
    for step in steps:
        parts = step.split()
        row = "ProxyNCA " + " ".join(f"+{name}" for name in parts) if parts else "ProxyNCA (2048-d)"
        for own, ending in (([], off), ([part], on)):
            name = " ".join(f"+{name}" for name in [*parts, *own]) or "ProxyNCA"
            variants[name] = _with([*parts, *own])
            printed[f"{row}, {ending}"] = {VARIANT: name}
    return Figure(
        name=f"proxynca++-ladder-{number}",
        summary=f"its parts one after the other, {off} and {on} (Table {number})",
        losses=("proxynca++",),
        variants=variants,
        cited=[Cited("ablation_tables.csv", "proxynca++", f"Table {number}", printed)],
        **NCAPP,
    )


ALL_BUT = "norm prob cbs"
# As their own papers train them, in Roth's code.
ROTH = {
    "preset": "mlrc",
    "protocol.lr": 1e-5,
    "protocol.optimizer_eps": 1e-8,
    "protocol.weight_decay": 4e-4,
    "protocol.batch_size": 112,
}
POOLED: dict[str, Changes] = {
    "Margin": {**ROTH, "loss": "margin-dw", DIMENSION: 128},
    "Triplet-Semihard": {**ROTH, "loss": "triplet-semihard", DIMENSION: 128},
    "MS": {**ROTH, "loss": "ms", DIMENSION: 512},
}

PROXYNCAPP = (
    Figure(
        name="proxynca++-drop",
        summary="each of its six parts left out (Table 7)",
        losses=("proxynca++",),
        variants={"full": {}} | {f"without {part}": off for part, off in WITHOUT.items()},
        metrics=("nmi",),
        cited=[
            Cited(
                "ablation_tables.csv",
                "proxynca++",
                "Table 7",
                {printed: {VARIANT: name} for name, printed in DROPPED.items()},
                metrics=("recall_at_1", "nmi"),
            )
        ],
        **NCAPP,
    ),
    _ladder(
        8,
        "prob",
        (
            *("", "scale", "scale norm", "scale max", "scale norm cbs"),
            *("scale norm cbs max", "scale norm cbs max fast"),
        ),
        "without prob",
        "with prob",
    ),
    _ladder(
        9,
        "scale",
        (
            *("", "cbs", "prob", "norm", "max", "fast", "max fast"),
            *(ALL_BUT, f"{ALL_BUT} max", f"{ALL_BUT} max fast"),
        ),
        "without scale",
        "with scale",
    ),
    _ladder(
        10,
        "max",
        (
            *("", "cbs", "prob", "norm", "scale", "fast", "scale fast"),
            *(ALL_BUT, f"{ALL_BUT} fast", f"{ALL_BUT} scale", f"{ALL_BUT} scale fast"),
        ),
        "average pooling",
        "max pooling",
    ),
    Figure(
        name="proxynca++-pooling",
        summary="average and max pooling under other losses (Table 11)",
        variants=POOLED,
        over={POOLING: ("avg", "max")},
        cited=[
            Cited(
                "ablation_tables.csv",
                "proxynca++",
                "Table 11",
                {
                    f"{name}, {pooling} pool (resnet50, {changes[DIMENSION]}-d)": {
                        VARIANT: name,
                        POOLING: pooling,
                    }
                    for name, changes in POOLED.items()
                    for pooling in ("avg", "max")
                },
            )
        ],
        **NCAPP,
    ),
    Figure(
        name="proxynca++-temperature",
        summary="1/T (Fig. 4; no numbers, best at 9)",
        losses=("proxynca++",),
        over={"params.inverse_temperature": (1.0, 2.0, 4.0, 9.0, 16.0, 32.0)},
        **NCAPP,
    ),
    Figure(
        name="proxynca++-k-max",
        summary="mean of the K largest of each channel; 64 is the average (Fig. 4; no numbers)",
        losses=("proxynca++",),
        over={POOLING: ("max", *(f"{2**k}-max" for k in range(1, 7)))},
        **NCAPP,
    ),
    Figure(
        name="proxynca++-proxy-rate",
        summary="learning rate of the proxies (Fig. 4; no numbers)",
        losses=("proxynca++",),
        over={"params.loss_lr": tuple(4 * 10.0**k for k in range(-3, 4))},
        **NCAPP,
    ),
)

FIGURES = {
    figure.name: figure
    for figure in (*PROXYGML, *HPL_FIGURES, *CCP_FIGURES, *DRML_FIGURES, *PROXYNCAPP)
}

# A quick look at a figure, on the embedded data set.
QUICK_DATASET = "glyphs"
QUICK_VALUES = 3  # of an axis: its ends and its middle


def find_figure(name: str) -> Figure:
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES, "`harness list figures` says what each shows")
    return FIGURES[name]


def sweep_of(
    figure: Figure,
    values: Mapping[str, Any] | None = None,
    axes: Sequence[Axis] = (),
    quick: bool = False,
    test: bool = False,
    seeds: int | None = None,
) -> Sweep:
    """The sweep that makes a figure, as the paper ran it unless something else is said.

    Args:
        values: config values of the user; another data set, protocol or trunk than the paper's
            has no published numbers, and no test classes are opened unless `test` says so.
        axes: in place of the figure's of the same key, or beside them.
        quick: on the embedded data set, a few steps, the ends and the middle of each axis.
        seeds: by default the paper's.
    """
    values = values or {}
    elsewhere = bool({"dataset", "protocol", "trunk", "weights"} & values.keys())
    tested = test or (figure.test and not elsewhere)
    over = {key: make_axis(key, list(found)) for key, found in figure.over.items()}
    if quick:
        over = {key: _thinned(axis) for key, axis in over.items() if key != "dataset"}
    if "dataset" in values:
        over.pop("dataset", None)
    over |= {axis.key: axis for axis in axes}
    dataset = QUICK_DATASET if quick else figure.dataset
    protocol = _quick_protocol(figure.protocol) if quick else figure.protocol
    params = {**figure.settings.get("params", {}), **values.get("params", {})}
    settings = {"dataset": dataset, "protocol": protocol, **figure.settings, **values}
    if params:
        settings["params"] = params
    results = settings.get("results_dir", "results")
    changed = [str(values[key]) for key in ("dataset", "protocol", "trunk") if key in values]
    parts = [figure.name, *(["quick"] if quick else []), *changed]
    return Sweep(
        losses=figure.losses,
        axes=list(over.values()),
        values=settings,
        variants=figure.variants,
        name="-".join(parts).replace(":", "_").replace("/", "_"),
        test=tested,
        seeds=seeds or (1 if quick else figure.seeds),
        metrics=figure.metrics if tested else (),
        published=[] if quick or elsewhere else _published(figure, Path(results)),
    )


def _thinned(axis: Axis) -> Axis:
    count = len(axis.values)
    places = sorted({i * (count - 1) // (QUICK_VALUES - 1) for i in range(QUICK_VALUES)})
    return replace(axis, values=tuple(axis.values[place] for place in places))


def _quick_protocol(name: str) -> str:
    protocol = registry.load_protocol(name, QUICK_DATASET)
    if protocol.epochs:
        changes: dict[str, Any] = {"epochs": 2}
        if protocol.validate_epochs:
            changes["validate_epochs"] = None
        if protocol.warmup_epochs > 1:
            changes["warmup_epochs"] = 1
    else:
        changes = {"max_steps": 50, "validate_every": 25}
    for field_name, value in changes.items():
        name = with_change(name, field_name, value)
    return name


def _published(figure: Figure, results: Path) -> list[PublishedValue]:
    """Every number that the paper has for a figure."""
    found: list[PublishedValue] = []
    for values, numbers in figure.read_off:
        for measured, number in numbers.items():
            metric, _, embedding = measured.partition(" ")
            found.append(_value(values, metric, embedding, number, read_off=True))
    for cited in figure.cited:
        rows = read(find_folder(results) / cited.file)
        rows = rows[(rows["paper"] == cited.paper) & (rows["table"] == cited.table)]
        for _, row in rows.iterrows():
            if row["method"] in cited.rows and row["metric"] in cited.metrics:
                values = {**cited.rows[row["method"]]}
                if "dataset" in figure.over:
                    values["dataset"] = row["dataset"]
                found.append(_value(values, row["metric"], "", float(row["value"]), False))
    return found


def _value(
    values: Changes, metric: str, embedding: str, number: float, read_off: bool
) -> PublishedValue:
    return {
        "values": dict(values),
        "metric": metric,
        "embedding": embedding,
        "value": float(number),
        "read_off": read_off,
    }
