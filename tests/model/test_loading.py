"""The order in which `load` looks, and what it says when there is nothing."""

import warnings

import pytest
import torch

import protoflows as pf
from protoflows.model import load as load_function
from protoflows.model import shipped_models
from tests.model.helpers import small_model, some_images


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A package with one shipped model of two classes, called "toy"."""
    package = tmp_path / "package"
    small_model(2).save_pretrained(package / "models" / "toy")
    (package / "models" / "__pycache__").mkdir()
    monkeypatch.setattr("protoflows.model.shipped.importlib.resources.files", lambda _: package)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def test_run_folder_and_saved_folder(tmp_path, monkeypatch):
    model, x = small_model(), some_images(2)
    model.save_pretrained(tmp_path / "runs" / "digits" / "model")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("runs/digits", tmp_path / "runs" / "digits", "runs/digits/model"):
            assert torch.equal(pf.load(name).predict_proba(x), model.predict_proba(x))


def test_shipped_model(shipped):
    assert shipped_models() == ("toy",)
    assert load_function("toy").config.num_classes == 2


def test_a_folder_of_a_shipped_models_name_goes_first_and_says_so(shipped):
    small_model(3).save_pretrained(shipped / "toy")
    with pytest.warns(
        UserWarning, match="loading the folder .*toy, not the model 'toy' that ships"
    ):
        assert load_function("toy").config.num_classes == 3


def test_a_folder_without_a_model_does_not_hide_a_shipped_one(shipped):
    (shipped / "toy").mkdir()
    with pytest.warns(UserWarning, match="ships with protoflows: .*toy holds no model"):
        assert load_function("toy").config.num_classes == 2


def test_hub_repository_comes_last(shipped, monkeypatch):
    asked = []

    def download(repo, **_):
        asked.append(repo)
        return str(shipped.parent / "package" / "models" / "toy")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert load_function("org/toy").config.num_classes == 2
    assert asked == ["org/toy"]
    small_model(3).save_pretrained(shipped / "org" / "toy")
    assert load_function("org/toy").config.num_classes == 3
    assert asked == ["org/toy"]


def test_hub_without_network(shipped):
    with pytest.raises(
        FileNotFoundError, match=r"no folder org/none, and the Hugging Face repository 'org/none'"
    ):
        load_function("org/none")


def test_a_mistyped_run_is_not_looked_for_on_the_hub(shipped, monkeypatch):
    (shipped / "runs" / "digits").mkdir(parents=True)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, **k: pytest.fail("asked"))
    with pytest.raises(
        FileNotFoundError, match=r"no model 'runs/digist'.*did you mean runs/digits"
    ):
        load_function("runs/digist")


def test_nothing_of_that_name(shipped):
    (shipped / ".toyy").mkdir()  # hidden folders are nobody's models
    with pytest.raises(FileNotFoundError, match=r"ship with protoflows: toy; did you mean toy\?"):
        load_function("toyy")


def test_unfinished_run(shipped):
    (shipped / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="train --resume run"):
        load_function("run")


def test_neither_file_nor_any_folder_is_a_model(shipped):
    (shipped / "file").write_text("")
    with pytest.raises(FileNotFoundError, match="but file is a file"):
        load_function("file")
    (shipped / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty holds no model"):
        load_function("empty")


def test_names_of_the_package():
    assert pf.load is load_function
    assert pf.ProtoFlow.__name__ == "ProtoFlow"
    with pytest.raises(AttributeError, match="no attribute 'PrtoFlow'"):
        pf.model.PrtoFlow  # noqa: B018
