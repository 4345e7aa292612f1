"""Any network of timm, as `timm:NAME`, up to its last features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from harness.errors import unknown
from harness.trunks.trunk import Trunk, TrunkFamily
from harness.trunks.weights import (
    Download,
    check_first_use,
    digest_of_file,
    first_use,
    read,
    unfit,
)

if TYPE_CHECKING:
    from timm.models import PretrainedCfg


class TimmFeatures(nn.Module):
    """Feature maps as they are; tokens as a map of one column.

    Pooled by the average, they are the features that timm itself classifies by, or those that its
    hidden layer takes. Networks that pool by attention, as SigLIP, are an exception: their patches
    are pooled as the protocol says.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.out_features: int = network.num_features
        self.channels_last = getattr(network, "output_fmt", "NCHW") == "NHWC"
        self.class_token = getattr(network, "global_pool", "") == "token"
        self.prefix: int = getattr(network, "num_prefix_tokens", 0)
        self.norm_path = _norm_behind_pooling(network)
        self.can_checkpoint = _can_checkpoint(network)

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, side, side) -> (n, features, height, width); of tokens (n, features, tokens, 1).

        A network that classifies by its class token gives that token alone, others none but
        those of image patches.
        """
        features = self.network.forward_features(images)
        if not isinstance(features, Tensor):
            raise TypeError(f"it gives a {type(features).__name__}, not one map of features")
        if features.dim() == 4:
            return features.permute(0, 3, 1, 2) if self.channels_last else features
        tokens = features[:, :1] if self.class_token else features[:, self.prefix :]
        return tokens.transpose(1, 2).unsqueeze(3)

    def checkpoint_gradients(self) -> None:
        """Keep little of what gradients need, and compute the rest again."""
        self.network.set_grad_checkpointing(True)

    def after_pooling(self, pooled: Tensor) -> Tensor:
        """(n, features) -> the same through the norm that the network has there, if it has one."""
        if self.norm_path is None:
            return pooled
        norm = self.network.get_submodule(self.norm_path)
        of_maps = "2d" in type(norm).__name__
        return norm(pooled[:, :, None, None] if of_maps else pooled).flatten(1)


def _can_checkpoint(network: Any) -> bool:
    try:
        network.set_grad_checkpointing(True)
    except (AssertionError, AttributeError, NotImplementedError):  # as timm refuses
        return False
    network.set_grad_checkpointing(False)
    return True


def _norm_behind_pooling(network: Any) -> str | None:
    """Where ConvNeXt, BEiT, Hiera and others normalise what they have pooled."""
    for path in ("fc_norm", "head.norm"):
        try:
            norm = network.get_submodule(path)
        except AttributeError:
            continue
        # A norm of another width stands behind a hidden layer of the head.
        if next((p.shape[0] for p in norm.parameters()), None) == network.num_features:
            return path
    return None


@dataclass(frozen=True)
class HubWeights:
    """Weights that timm keeps on the Hugging Face hub, in the cache that the hub's client keeps."""

    model: str
    repository: str
    files: tuple[str, ...]
    sha256 = ""  # not published

    @property
    def kept_as(self) -> str:
        """Name under which its first use is noted."""
        return f"timm_{self.repository.replace('/', '_')}"

    def find(self) -> Path:
        return _fetched(self)


@cache
def _fetched(weights: HubWeights) -> Path:
    """The first of the files that is in the cache or, failing that, on the hub."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    repository, _, revision = weights.repository.partition("@")
    # The hub may replace a file: the revision of the first use stays the one that is asked for.
    revision = revision or first_use(weights.kept_as).get("revision", "")
    where: dict[str, Any] = {"repo_id": repository, "revision": revision or None}
    for name in weights.files:
        cached = try_to_load_from_cache(filename=name, **where)
        if isinstance(cached, str):
            return _checked(weights, Path(cached))
    for name in weights.files:
        try:
            fetched = Path(hf_hub_download(filename=name, **where))
        except LocalEntryNotFoundError as error:  # what it says when there is no network
            raise _unreachable(weights, _said(error)) from None
        except EntryNotFoundError:
            continue
        except Exception as error:  # of whatever library it reaches the network with
            raise _unreachable(weights, _said(error)) from None
        return _checked(weights, fetched)
    raise _unreachable(weights, "the file is not there")


def _checked(weights: HubWeights, file: Path) -> Path:
    """The file, if it is that of the first use; the hub's cache has a folder per revision."""
    check_first_use(file, weights.kept_as, digest_of_file(file), revision=file.parent.name)
    return file


def _unreachable(weights: HubWeights, reason: str) -> ValueError:
    repository = weights.repository.partition("@")[0]
    return ValueError(
        f"cannot download the weights of timm:{weights.model}: {reason}\n"
        f"  file: {' or '.join(weights.files)}\n"
        f"  from: https://huggingface.co/{repository}\n"
        "  a mirror of the hub is set by HF_ENDPOINT\n"
        f"  where there is a network, `hf download {repository} {weights.files[0]}` puts it into "
        "the hub's cache, a folder to copy here (HF_HOME, else ~/.cache/huggingface)\n"
        f"  or give the file alone, --weights PATH: its results are then named "
        f"timm:{weights.model}@DIGEST and have a table of their own\n"
        "  or start from random weights: --weights none"
    )


@dataclass(frozen=True)
class NoWeights:
    """Of a network that timm has no weights for: a choice must be made."""

    model: str
    sha256 = ""

    def find(self) -> Path:
        raise ValueError(
            f"timm has no pretrained weights for {self.model}; give --weights PATH, or none to "
            "start from random ones"
        )


def build(channels: int, file: Path | None, name: str, options: Mapping[str, Any]) -> TimmFeatures:
    import timm

    network: Any
    if file is None:
        try:
            network = timm.create_model(name, in_chans=channels, **options)
        except Exception as error:  # for a side that it cannot be fitted to
            raise ValueError(f"timm cannot build {name} with {options}: {_said(error)}") from error
    else:
        # With its classifier: without, timm takes any file for one that fits.
        try:
            network = timm.create_model(
                name,
                pretrained=True,
                in_chans=channels,
                pretrained_cfg_overlay={"file": str(file), "source": ""},
                **options,
            )
        except Exception as error:  # of timm's loaders, and of its filters for foreign names
            if file.suffix != ".safetensors":
                read(file)  # if it cannot be read, that is the reason
            raise unfit(file, f"does not fit timm:{name}: {_said(error)}") from error
    network.reset_classifier(0)
    return TimmFeatures(network)


def _said(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).splitlines()[:2])[:300]


def member(spec: str) -> Trunk:
    """The trunk `timm:NAME`, or `timm:NAME:SIDE` to fit a vision transformer to other images."""
    name, colon, given = spec.partition(":")
    settings = _settings(name)
    side = settings.input_size[-1] if settings.fixed_input_size else None
    options = {}
    if colon:
        if side is None:
            raise ValueError(f"timm:{name} takes images of any size; leave out ':{given}'")
        if not (given.isdecimal() and int(given) > 0):
            raise ValueError(f"'timm:{spec}' does not read as timm:NAME:SIDE, SIDE in pixels")
        side = options["img_size"] = int(given)
    return Trunk(
        f"timm:{spec}",
        f"{name} of timm",
        partial(build, name=name, options=options),
        _own_weights(name, settings),
        check_side=partial(_check_side, name=name, only=side),
        own_side=settings.input_size[-1],
        mean=tuple(settings.mean),
        std=tuple(settings.std),
        licence=settings.license or "",
    )


def _settings(name: str) -> PretrainedCfg:
    import timm

    if not timm.is_model(name):
        raise unknown("model of timm (timm.list_models() lists them)", name, timm.list_models())
    try:
        settings = timm.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError as error:  # a wrong tag behind the name
        tags = ", ".join(timm.list_pretrained(f"{name.partition('.')[0]}.*"))
        raise ValueError(f"{error}\n  known: {tags}") from None
    assert settings is not None
    return settings


def _check_side(side: int, name: str, only: int | None) -> None:
    if only not in (None, side):
        raise ValueError(
            f"trunk timm:{name} takes images of {only} px only, not of {side}\n"
            f"  give --trunk timm:{name}:{side} to resample its positions, or a protocol with "
            f"+crop={only}"
        )


def _own_weights(name: str, settings: PretrainedCfg) -> HubWeights | Download | NoWeights:
    if settings.hf_hub_id:
        names = ("model.safetensors", "pytorch_model.bin")
        files = (settings.hf_hub_filename,) if settings.hf_hub_filename else names
        return HubWeights(name, settings.hf_hub_id, files)
    if settings.url and isinstance(settings.url, str):
        return Download(settings.url, "")
    return NoWeights(name)


TRUNKS = (TrunkFamily("timm:NAME", "any model of timm, with its weights", member),)
