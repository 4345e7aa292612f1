"""The unit of work: one configuration, on one fold, at one repetition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.config import RunConfig
from harness.data.batches import Source, TrainBatches
from harness.data.features import AHEAD, Features
from harness.data.loading import Loader, image_loader, open_loader
from harness.data.passes import DealtBatches, ShuffledBatches
from harness.experiment import Experiment, digest_of
from harness.losses.method import Hook
from harness.metrics import retrieval
from harness.model.build import attach, build_model
from harness.model.network import Model
from harness.protocols.selection.partition import Partition
from harness.protocols.splits import Fold
from harness.records.layout import FOLD_RECORD, PROXIES, TRIAL_RECORD, WEIGHTS, fold_folder
from harness.records.records import FoldRecord, Identity
from harness.training.embed import embed_with
from harness.training.saved import load_weights
from harness.training.trainer import Trainer, Validate


@dataclass(frozen=True)
class Unit:
    """One model to train, or one that was.

    Attributes:
        trainval: what models see of the classes that are trained and validated on.
        repetition: 0 in a search, 1 and up for reproductions.
        of_search: whether a search proposed it; that is no part of what defines it.
        partition: number of the experiment's partition whose model this is; None for a model of
            the protocol's own folds.
    """

    experiment: Experiment
    trainval: Source
    params: Mapping[str, Any]
    fold: int
    repetition: int = 0
    of_search: bool = False
    partition: int | None = None

    @property
    def identity(self) -> Identity:
        """What all units of the experiment measure."""
        return self.experiment.identity(self.trainval.fingerprint)

    @cached_property
    def folder(self) -> Path:
        """Named by a hash of what defines the unit."""
        parts = {
            **self.identity,
            "params": dict(self.params),
            "fold": self.fold,
            "repetition": self.repetition,
        }
        if self.cut.folds != self.experiment.split.folds:
            parts["partition"] = self.cut.digest
        return fold_folder(self.experiment.runs, digest_of(parts))

    @property
    def cut(self) -> Partition:
        """The models of the unit's trial, or of its reproduction, by their classes."""
        if self.partition is None:
            return Partition(self.experiment.split.folds)
        return self.experiment.partitions[self.partition]

    @property
    def classes(self) -> Fold:
        return self.cut.folds[self.fold]

    @property
    def scored_classes(self) -> tuple[int, ...]:
        """The classes that the model is scored on together with others of its trial."""
        return self.cut.embedded_by(self.fold)

    @property
    def trial_path(self) -> Path:
        """Where the record of the unit's trial is written, if its models are scored together."""
        return replace(self, fold=0).folder / TRIAL_RECORD

    @property
    def config(self) -> RunConfig:
        """What repeats this run when it is given back."""
        changes = {"protocol": self.experiment.protocol.name, "params": dict(self.params)}
        return self.experiment.config.updated(changes)

    def seed(self, stream: str) -> int:
        # Partitions after the first have other seeds.
        stream += f", partition {self.partition}" if self.partition else ""
        return self.experiment.seed(stream, self.fold, self.repetition)

    def find_record(self) -> FoldRecord | None:
        """Of the unit, if it is finished."""
        path = self.folder / FOLD_RECORD
        return FoldRecord.read(path) if path.exists() else None

    def build_trainer(
        self,
        device: torch.device,
        validate: Validate | None = None,
        wrap_hook: Callable[[Hook], Hook] = lambda hook: hook,
    ) -> Trainer:
        """Everything that trains, from the unit's own seeds.

        Args:
            validate: instead of the validation classes.
            wrap_hook: what to put around the method's hook.
        """
        experiment = self.experiment
        protocol, method = experiment.protocol, experiment.method
        model = self._build_model(self.seed("init"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed("loss init"))
            classes = self.classes.train
            hierarchy = experiment.hierarchy_of(classes)
            size = protocol.embedding_size
            loss = method.make_loss(len(classes), size, self.params, hierarchy)
        attach(loss, model.head)
        batches = self._batches()
        return Trainer(
            model=model,
            loss=loss,
            hook=wrap_hook(method.make_hook(self.params, protocol.base_steps)),
            batches=batches,
            validate=validate or self._validation(device, batches),
            protocol=protocol,
            method=method,
            params=self.params,
            loader=open_loader(experiment.config, device, laborious=not protocol.frozen),
            micro_batch=0 if protocol.frozen else experiment.config.micro_batch,
        )

    def load_proxies(self) -> dict[str, torch.Tensor]:
        """The parameters of the loss at the best model, where weights were kept; none of some."""
        path = self.folder / PROXIES
        return load_weights(path, torch.device("cpu")) if path.exists() else {}

    def load_model(self, device: torch.device, weights: str = WEIGHTS) -> Model:
        """The best model of a finished unit whose weights were kept.

        Args:
            weights: file of other ones that were kept.
        """
        return self.make_model(load_weights(self.folder / weights, device), device)

    def make_model(self, weights: Mapping[str, torch.Tensor], device: torch.device) -> Model:
        """The unit's network with weights that were kept of it."""
        model = self._build_model(seed=0).to(device)
        model.load_state_dict(weights)
        return model

    def _build_model(self, seed: int) -> Model:
        width = self.trainval.width if isinstance(self.trainval, Features) else None
        return build_model(self.experiment, self.params, seed, width)

    def _batches(self) -> TrainBatches:
        protocol = self.experiment.protocol
        per_class = protocol.samples_per_class or self.experiment.method.samples_per_class
        orders = {
            "drawn": TrainBatches,
            "shuffled": ShuffledBatches if per_class == 1 else DealtBatches,
            "dealt": DealtBatches,
        }
        most = (protocol.classes_per_batch or protocol.batch_size) * per_class
        return orders[protocol.batches](
            source=self.trainval,
            indices=self.experiment.by_class(self.trainval.indices, self.classes.train),
            batch_size=min(protocol.batch_size, most),
            samples_per_class=per_class,
            seed=self.seed("sampler"),
            ahead=AHEAD if protocol.frozen else 1,
            keep_rest=protocol.keep_rest,
        )

    def _validation(self, device: torch.device, batches: TrainBatches) -> Validate:
        """By retrieval among the images of the validation classes; by steps if there are none."""
        if not self.classes.val:
            return lambda model, step: float(step)
        experiment, metric = self.experiment, self.experiment.protocol.metric
        indices = experiment.of_classes(self.trainval.indices, self.classes.val)
        assert not set(indices) & set(np.concatenate(batches.indices).tolist())
        labels = torch.from_numpy(experiment.listing.labels[indices]).to(device)
        loader = evaluation_loader(experiment, device)

        def validate(model: Model, step: int) -> float:
            del step
            normalizer = experiment.method.normalizer
            embeddings = embed_with(model, self.trainval, indices, loader, normalizer)
            return retrieval.evaluate(embeddings, labels, metrics=(metric,)).values[metric]

        return validate


def evaluation_loader(experiment: Experiment, device: torch.device) -> Loader:
    """Of the images of an experiment, or of its features, which need no preparation."""
    return Loader(device) if experiment.protocol.frozen else image_loader(experiment.config, device)
