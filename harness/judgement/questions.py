"""What the tables are asked: the claims of the papers, as data that needs no torch.

A method declares its base; of the papers' methods it stands here again, as a test holds, since a
question about a row that is missing must be known, too. Of all others the records state it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class System:
    """What one paper proposes.

    Attributes:
        question: what a reader wants to know of it.
        rivals: each of its methods -> what it must beat, its base first.
        corner: values of their own parameters at which a step differs from the base's by less than
            1 %. A lead over the base that was found there is one of the search.
    """

    name: str
    question: str
    rivals: Mapping[str, tuple[str, ...]]
    corner: Mapping[str, float] = field(default_factory=dict)


SYSTEMS = (
    System("ProxyNCA++", "Does ProxyNCA++ beat ProxyNCA?", {"proxynca++": ("proxynca",)}),
    System(
        "ProxyGML",
        "Does ProxyGML beat SoftTriple and ProxyNCA?",
        {"proxygml": ("softtriple", "proxynca")},
    ),
    System(
        "HPL",
        "Does each HPL beat its base?",
        {"hpl-nca": ("proxynca",), "hpl-pa": ("proxyanchor",)},
        corner={"coarse_weight": 1e-3},
    ),
    System(
        "CCP",
        "Does each CCP beat its base, and its base with a memory (XBM)?",
        {
            "ccp-c1": ("c1", "c1-xbm"),
            "ccp-c2": ("c2", "c2-xbm"),
            "ccp-ms": ("ms-ball",),
            "ccp-triplet": ("triplet-ball",),
        },
        corner={"batch_share": 1.0, "reference_weight": 1e-5},
    ),
    System(
        "DRML",
        "Does each DRML beat its base, and its base on DRML's head?",
        {
            "drml-triplet": ("triplet-semihard", "relation-triplet"),
            "drml-pa": ("proxyanchor", "relation-pa"),
            "drml-cosface": ("cosface", "relation-cosface"),
            "drml-margin": ("margin-dw", "relation-margin"),
        },
    ),
)

CORNERS = {method: system.corner for system in SYSTEMS for method in system.rivals}

PROPOSED = tuple(method for system in SYSTEMS for method in system.rivals)

# What was there before those papers: the losses of the reality check, Proxy Anchor, and the forms
# of them that the papers build on.
OLD = (
    *("contrastive", "triplet", "ntxent", "proxynca", "margin", "margin-class", "nsoftmax"),
    *("cosface", "arcface", "fastap", "snr", "ms", "ms-miner", "softtriple", "proxyanchor"),
    *("c1", "c2", "c1-xbm", "c2-xbm", "ms-ball", "triplet-ball", "triplet-semihard", "margin-dw"),
    "softmax",
)

# PCA of what a trained head starts from: features of a network, trained elsewhere or not at all.
STARTS = ("pretrained", "untrained")

# Bases that the papers print under the name of a loss that differs from them in a detail.
PRINTED_AS = {
    "ms-ball": "ms",
    "triplet-ball": "triplet",
    "triplet-semihard": "triplet",
    "margin-dw": "margin",
}
