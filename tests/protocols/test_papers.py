"""The papers' own protocols, field by field as the papers and their code have them."""

from __future__ import annotations

from typing import Any

import pytest

from harness import registry

LARGE = ("sop", "inshop")

# Protocol, data sets, trunk (empty: the protocol's) -> fields.
PUBLISHED: list[tuple[str, tuple[str, ...], str, dict[str, Any]]] = [
    (
        "classic-proxygml",
        ("cub", "cars", "sop"),
        "",
        {
            **{"embedding_size": 512, "trunk": "bninception", "pooling": "avg", "norm": "none"},
            **{"crop": 224, "crop_scale": (0.08, 1.0), "crop_from": "original", "resize": 256},
            **{"batch_size": 32, "batches": "shuffled", "keep_rest": True, "lr": 1e-4},
            **{"optimizer": "adam", "optimizer_eps": 0.01, "weight_decay": 1e-4},
            **{"clip_norm": None, "clip_value": None, "warmup_epochs": 0, "epochs": 50},
            **{"schedule": "multistep", "lr_factor": 0.1, "lr_epochs": (19, 39)},
            **{"validate_epochs": (1, 2, *range(35, 51)), "select": "test"},
        },
    ),
    ("classic-proxygml", ("cub", "cars"), "", {"freeze_batchnorm": True, "loss_lr": 0.03}),
    ("classic-proxygml", LARGE, "", {"freeze_batchnorm": False, "loss_lr": 0.3}),
    (
        "classic-hpl",
        ("cub", "cars", *LARGE),
        "",
        {
            **{"embedding_size": 512, "trunk": "resnet50", "pooling": "avg+max", "crop": 224},
            **{"batch_size": 128, "keep_rest": False, "optimizer": "adamw", "lr": 1e-4},
            **{"trunk_lr": None, "loss_lr": 1e-2, "weight_decay": 1e-4, "warmup_epochs": 5},
            **{"warmup_groups": ("head", "loss"), "warmup_extra": False, "clip_value": 10.0},
            **{"clip_loss": True, "epochs": 30, "schedule": "step", "validate_epochs": None},
        },
    ),
    ("classic-hpl", ("cub",), "", {"lr_every": 5, "lr_factor": 0.5, "freeze_batchnorm": True}),
    ("classic-hpl", ("cars",), "", {"lr_every": 10, "lr_factor": 0.5, "freeze_batchnorm": True}),
    ("classic-hpl", LARGE, "", {"lr_every": 20, "lr_factor": 0.25, "freeze_batchnorm": False}),
    ("classic-hpl", ("cub",), "bninception", {"lr_every": 10, "warmup_epochs": 1}),
    ("classic-hpl", ("cars",), "bninception", {"lr_every": 20, "warmup_epochs": 1}),
    (
        "classic-drml",
        ("cub", "cars"),
        "",
        {
            **{"embedding_size": 512, "trunk": "bninception", "pooling": "avg+max", "crop": 224},
            **{"crop_from": "resized", "crop_scale": (0.16, 1.0), "crop_ratio": (0.75, 1.33)},
            **{"freeze_batchnorm": True, "freeze_affine": True, "batch_size": 180},
            **{"batches": "shuffled", "keep_rest": False, "optimizer": "adamw", "lr": 1e-3},
            **{"trunk_lr": 5e-5, "loss_lr": 1e-2, "weight_decay": 1e-4, "warmup_epochs": 1},
            **{"schedule": "step", "lr_every": 10, "lr_factor": 0.5, "clip_norm": 10.0},
            **{"clip_each": True, "epochs": 61, "patience": 15, "stop_below": 0.6},
        },
    ),
    (
        "classic-ccp",
        ("cub", "cars", *LARGE),
        "",
        {
            **{"embedding_size": 512, "trunk": "bninception", "pooling": "avg+max", "crop": 227},
            **{"head_bias": False, "crop_from": "original", "crop_scale": (0.16, 1.0)},
            **{"freeze_batchnorm": True, "freeze_affine": True, "batch_size": 128},
            **{"batches": "drawn", "optimizer": "adam", "weight_decay": 1e-4, "clip_norm": 10.0},
            **{"clip_value": 10.0, "clip_each": False, "schedule": "plateau", "lr_factor": 0.5},
            **{"plateau_threshold": 1e-3, "plateau_mode": "abs", "plateau_cooldown": 1},
            **{"plateau_floor": 1e-6, "patience": 15, "min_gain": 1e-5, "metric": "p_at_1"},
        },
    ),
    # In Keras's terms patience 4 and 3: it counts the validation that lowers the rate.
    ("classic-ccp", ("cub", "cars"), "", {"plateau_patience": 3, "validate_every": 25}),
    ("classic-ccp", LARGE, "", {"plateau_patience": 2, "validate_every": 250, "lr": 1e-4}),
    ("classic-ccp", ("cub",), "", {"lr": 1e-5, "loss_lr": 1e-3, "classes_per_batch": 100}),
    ("classic-ccp", ("cars",), "", {"classes_per_batch": 96}),
    ("classic-ccp", ("cub",), "resnet50", {"batch_size": 112, "weight_decay": 4e-4}),
    ("classic-ccp", LARGE, "resnet50", {"batch_size": 112, "patience": 10}),
    *(
        (
            name,
            ("cub", "cars", *LARGE),
            "",
            {
                **{"trunk": "timm:vit_small_patch16_224.dino", "embedding_size": 384},
                **{"norm": "layer", "head_bias": True, "resize": 256, "crop": 224},
                **{"crop_scale": (0.2, 1.0), "crop_from": "original", "batch_size": 180},
                **{"optimizer": "adamw", "loss_lr": 5e-2, "clip_value": 10.0, "clip_loss": True},
                **{"schedule": "constant", "precision": "fp32", "warmup_groups": ("head", "loss")},
            },
        )
        for name in ("vit", "classic-vit")
    ),
    *(
        (name, datasets, "", settings)
        for name in ("vit", "classic-vit")
        for datasets, settings in (
            (
                ("cub", "cars"),
                {
                    **{"lr": 5e-6, "trunk_lr": None, "weight_decay": 1e-2, "epochs": 100},
                    **{"warmup_epochs": 1, "validate_epochs": None},
                },
            ),
            (
                LARGE,
                {
                    **{"lr": 5e-4, "trunk_lr": 5e-6, "weight_decay": 1e-4, "epochs": 150},
                    **{"warmup_epochs": 5},
                },
            ),
        )
    ),
    (
        "vit",
        ("cub", "cars", *LARGE),
        "",
        {
            **{"selection": "pairs", "finalists": 5, "folds": "mlrc", "split": "half"},
            **{"metric": "map_at_r", "trials": 50, "samples_per_class": None},
        },
    ),
    (
        "classic-vit",
        ("cub", "cars", *LARGE),
        "",
        {"split": "official", "select": "test", "samples_per_class": 2, "patience": None},
    ),
    (
        "two_stage",
        ("cub", "cars", *LARGE),
        "",
        {
            **{"embedding_size": 2048, "trunk": "resnet50", "pooling": "max", "norm": "layer"},
            **{"freeze_batchnorm": False, "resize": 288, "crop": 256, "crop_from": "original"},
            **{"crop_scale": (0.08, 1.0), "batches": "dealt", "optimizer": "adam"},
            **{"optimizer_eps": 1.0, "weight_decay": 0.0, "clip_value": 10.0, "clip_loss": False},
            **{"warmup_epochs": 5, "warmup_extra": True, "warmup_statistics": True},
        },
    ),
    (
        "two_stage",
        ("cub", "cars", "sop"),
        "",
        {
            **{"folds": "halves", "select": "replay", "schedule": "plateau", "lr_factor": 0.1},
            **{"plateau_on": "harmonic", "plateau_patience": 4, "plateau_threshold": 1e-4},
            **{"plateau_mode": "rel", "replay_lag": 0, "reproductions": 5},
        },
    ),
    (
        "two_stage",
        ("cub", "cars"),
        "",
        {"lr": 4e-3, "loss_lr": 4e2, "batch_size": 32, "samples_per_class": 4, "epochs": 40},
    ),
    ("two_stage", ("sop",), "", {"lr": 2.4e-2, "loss_lr": 2.4e2, "epochs": 80}),
    ("two_stage", LARGE, "", {"batch_size": 192, "samples_per_class": 3}),
    (
        "ablation-ccp",
        ("cub", "cars", *LARGE),
        "",
        {
            **{"folds": "thirds", "split": "official", "embedding_size": 128, "select": "best"},
            **{"optimizer": "adam", "lr": 1e-5, "patience": 60, "metric": "map_at_r"},
        },
    ),
]


@pytest.mark.parametrize(("name", "datasets", "trunk", "fields"), PUBLISHED)
def test_fields_are_those_of_the_paper(
    name: str, datasets: tuple[str, ...], trunk: str, fields: dict[str, Any]
) -> None:
    for dataset in datasets:
        protocol = registry.load_protocol(name, dataset, trunk=trunk)
        found = {field: getattr(protocol, field) for field in fields}
        assert found == fields
        assert protocol.name == name


RECALLS = {
    **dict.fromkeys(("cub", "cars", "inaturalist"), (1, 2, 4, 8)),
    **{"sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30, 40, 50)},
}


@pytest.mark.parametrize("dataset", RECALLS)
@pytest.mark.parametrize("name", ["proxygml", "hpl", "drml", "ccp", "vit"])
def test_recall_is_measured_at_the_ranks_of_the_data_set(name: str, dataset: str) -> None:
    metrics = registry.load_protocol(f"classic-{name}", dataset).test_metrics
    assert metrics == (*(f"recall_at_{k}" for k in RECALLS[dataset]), "nmi")


def test_proxynca_pp_prints_in_shop_up_to_rank_40() -> None:
    metrics = registry.load_protocol("two_stage", "inshop").test_metrics
    assert metrics == (*(f"recall_at_{k}" for k in (1, 10, 20, 30, 40)), "nmi")
