import json

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from protoflows.model import Extras, ProtoFlow, load
from protoflows.model.card import CARD_MARK, model_card
from tests.flows.helpers import TINY
from tests.model.helpers import small_model, some_images


def with_extras(**changes):
    model = small_model(prior=(1.0, 2.0, 3.0), class_names=("a", "b|<c", "ü"))
    fields = {
        "mean_image": torch.rand(1, 4, 4),
        "log_prob_quantiles": torch.arange(101.0),
        "images": some_images(3),
        "labels": torch.arange(3),
        "data_name": "toy",
        "data_fingerprint": "abc123",
        "metrics": {"accuracy": 0.75},
        "licence": "mit",
    }
    model.extras = Extras(**{**fields, **changes})
    return model


def test_saving_is_exact(tmp_path):
    model, x = with_extras(), some_images(4)
    model.flow.to(memory_format=torch.channels_last)  # safetensors takes contiguous tensors alone
    model.save_pretrained(tmp_path / "deep" / "folder")
    again = ProtoFlow.from_pretrained(tmp_path / "deep" / "folder")
    for (name, old), new in zip(
        model.state_dict().items(), again.state_dict().values(), strict=True
    ):
        assert torch.equal(old, new), name
    assert again.config == model.config
    assert not again.training
    assert torch.equal(again.predict_proba(x), model.predict_proba(x))
    assert torch.equal(again.sample(3, seed=1), model.sample(3, seed=1))
    assert again.extras.to_dict() == model.extras.to_dict()
    for name, tensor in model.extras.tensors().items():
        assert torch.equal(tensor, again.extras.tensors()[name])


def test_folder_holds_what_the_hub_expects(tmp_path):
    with_extras().save_pretrained(tmp_path)
    files = {p.name for p in tmp_path.iterdir()}
    assert files == {"model.safetensors", "config.json", "extras.safetensors", "README.md"}
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["num_classes"] == 3
    assert config["format_version"] == 1
    assert config["extras"]["metrics"] == {"accuracy": 0.75}
    modes = {p.stat().st_mode & 0o777 for p in tmp_path.iterdir()}
    assert len(modes) == 1  # nobody is shut out from the weights alone


def test_loading_leaves_the_random_state_alone(tmp_path):
    small_model().save_pretrained(tmp_path)
    state = torch.get_rng_state()
    load(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("weights_dtype", ["float16", "bfloat16"])
def test_narrow_weights(tmp_path, weights_dtype):
    model, x = small_model(), some_images(8)
    model.save_pretrained(tmp_path / "wide")
    model.save_pretrained(tmp_path / "narrow", weights_dtype=weights_dtype)
    wide, narrow = (
        tmp_path / "wide" / "model.safetensors",
        tmp_path / "narrow" / "model.safetensors",
    )
    stored = load_file(narrow)
    for name, tensor in stored.items():
        kernel = name.startswith("flow.") and tensor.dim() == 4
        expected = getattr(torch, weights_dtype) if kernel else model.state_dict()[name].dtype
        assert tensor.dtype == expected, name
    assert narrow.stat().st_size < wide.stat().st_size
    again = load(tmp_path / "narrow")
    assert {p.dtype for p in again.parameters()} == {torch.float32}
    assert torch.equal(again.mixtures.std, model.mixtures.std)
    assert (again.log_prob(x) - model.log_prob(x)).abs().max() < 0.5
    enc = again.encode(x, seed=0)
    assert torch.equal(again.decode(enc), x)


def test_narrow_weights_that_overflow_are_refused(tmp_path):
    model = small_model()
    name = next(n for n, p in model.named_parameters() if p.dim() == 4)
    with torch.no_grad():
        model.get_parameter(name).fill_(1e6)
    with pytest.raises(ValueError, match=f"float16 cannot hold {name}.*bfloat16"):
        model.save_pretrained(tmp_path / "new", weights_dtype="float16")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match="weights_dtype must be one of float32, float16, bfloat16"):
        model.save_pretrained(tmp_path, weights_dtype="int8")


def test_saving_again_replaces_everything(tmp_path):
    with_extras().save_pretrained(tmp_path)
    small_model(2, 4).save_pretrained(tmp_path)
    again = load(tmp_path)
    assert again.config.num_classes == 2
    assert again.extras is None
    assert not (tmp_path / "extras.safetensors").exists()
    assert "toy" not in (tmp_path / "README.md").read_text()


def test_a_failed_save_keeps_the_old_model(tmp_path, monkeypatch):
    model = small_model()
    model.save_pretrained(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("protoflows.model.saving.json.dumps", full)
    with pytest.raises(OSError, match="No space left"):
        small_model(2).save_pretrained(tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_full_disk_is_an_error_of_the_system(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("protoflows.model.saving.save_file", full)
    with pytest.raises(OSError, match=r"could not be written to .*No space"):
        small_model(2).save_pretrained(tmp_path / "m")
    assert list((tmp_path / "m").iterdir()) == []


def test_a_persons_own_card_is_kept(tmp_path):
    model = small_model()
    model.save_pretrained(tmp_path)
    card = tmp_path / "README.md"
    card.write_text(card.read_text().replace(CARD_MARK, "My words."))
    model.save_pretrained(tmp_path)
    assert "My words." in card.read_text()


def test_card_says_what_the_model_is():
    model = with_extras().with_prototypes(disable=[(0, 1)])
    card = model_card(model)
    assert card.startswith("---\nlibrary_name: protoflows\n")
    assert 'license: "mit"' in card
    assert "3: a, b\\|&lt;c, ü" in card
    assert "5 of 6" in card
    assert "trained on toy" in card
    assert "None are stored" in card  # the figures were measured before the edit
    assert "| accuracy | 0.75 |" in model_card(with_extras())
    bare = model_card(small_model())
    assert "license:" not in bare
    assert "not stated by whoever trained them" in bare
    parsed = with_extras().generate_model_card()  # the Hub's own reading of it
    assert parsed.data.license == "mit"
    assert parsed.data.library_name == "protoflows"
    assert parsed.text.strip() == model_card(with_extras()).split("---\n", 2)[2].strip()


def test_hub_upload_goes_through_the_mixin(monkeypatch, tmp_path):
    uploaded = {}

    class Api:
        def __init__(self, token=None):
            pass

        def create_repo(self, repo_id, **_):
            return type("Repo", (), {"repo_id": repo_id})

        def upload_folder(self, repo_id, folder_path, **_):
            uploaded[repo_id] = sorted(p.name for p in folder_path.iterdir())
            return "commit"

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    assert with_extras().push_to_hub("me/toy") == "commit"
    files = ["README.md", "config.json", "extras.safetensors", "model.safetensors"]
    assert uploaded == {"me/toy": files}
    model = small_model()
    assert model.save_pretrained(tmp_path, push_to_hub=True, repo_id="me/two") == "commit"
    assert uploaded["me/two"] == ["README.md", "config.json", "model.safetensors"]


def damaged(folder, name, content):
    (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda f: (f / "config.json").write_text("{"), ValueError, "not readable as JSON"),
        (lambda f: (f / "config.json").write_text("[]"), ValueError, "must hold an object"),
        (
            lambda f: (f / "config.json").write_text('{"num_classes": 3, "class_nmes": []}'),
            ValueError,
            "config.json: unknown key 'class_nmes'.*'class_names'",
        ),
        (lambda f: damaged(f, "model.safetensors", b"x" * 20), ValueError, "copied completely"),
        (lambda f: (f / "model.safetensors").unlink(), FileNotFoundError, "holds no model"),
        (lambda f: (f / "config.json").unlink(), FileNotFoundError, "holds no model"),
    ],
)
def test_damaged_folders(tmp_path, damage, error, message):
    small_model().save_pretrained(tmp_path)
    damage(tmp_path)
    with pytest.raises(error, match=message):
        load(tmp_path)


def test_weights_of_another_model(tmp_path):
    small_model(3).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["extra"] = torch.zeros(1)
    del tensors["mixtures.logits"]
    tensors["mixtures.mean"] = torch.zeros(2, 2, 2)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"1 missing \(mixtures.logits\); 1 unknown \(extra\); 1 of"
    ):
        load(tmp_path)


def test_saving_over_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="save_directory must be a folder"):
        small_model().save_pretrained(tmp_path / "file")


def test_extras_of_another_model_are_not_saved(tmp_path):
    model = small_model(flow=TINY)
    model.extras = Extras(mean_image=torch.zeros(3, 4, 4))
    with pytest.raises(ValueError, match="mean_image must hold images of shape"):
        model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()
