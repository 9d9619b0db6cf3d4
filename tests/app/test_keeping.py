"""Edited models are saved where they may be, and are the same when they come back."""

import json

import pytest
import torch

from protoflows.app import keeping
from protoflows.app.edits import Merge, Rename, SwitchOff
from protoflows.app.keeping import SaveError, save_edited
from protoflows.evaluation.predict import predict_images
from protoflows.model import load

EDITS = (SwitchOff((3, 1)), Merge((5, 0), (5, 1)), Rename((0, 1), "round"))


def test_a_saved_model_predicts_the_same(workspace, tmp_path):
    edited = workspace.edited(EDITS)
    place = save_edited(edited, EDITS, tmp_path / "new" / "folder", "fewer-1")
    assert place == tmp_path / "new" / "folder" / "fewer-1"
    again = load(place)
    assert again.config.prototype_names == {(0, 1): "round"}
    images = workspace.test.images[:20]
    for had, has in zip(
        predict_images(edited, images, samples=2), predict_images(again, images, samples=2),
        strict=True,
    ):  # fmt: skip
        assert torch.equal(had, has)
    noted = json.loads((place / "edits.json").read_text())["edits"]
    assert noted[0] == "3 · prototype 1 switched off"
    assert len(noted) == 3


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "../out", "a/b", "a\\b", "/tmp/x", ".hidden", "-rf", "a b", "ä",
             "x" * 61, "a\n", "a\0b", "~"],
)  # fmt: skip
def test_names_that_could_lead_elsewhere_are_refused(workspace, tmp_path, name):
    if name == "a\n":  # blanks about a name are no part of it
        assert save_edited(workspace.model, (), tmp_path, name).name == "a"
        return
    with pytest.raises(SaveError, match="letters, digits"):
        save_edited(workspace.model, (), tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays(workspace, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").write_text("kept")
    for name in ("mine", "link", "file"):
        with pytest.raises(SaveError, match="already"):
            save_edited(workspace.model, (), tmp_path, name)
    assert list((tmp_path / "mine").iterdir()) == []
    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "file").read_text() == "kept"


def test_a_disk_is_not_filled(workspace, tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "MOST_FOLDERS", 1)
    save_edited(workspace.model, (), tmp_path, "first")
    with pytest.raises(SaveError, match="1 models already"):
        save_edited(workspace.model, (), tmp_path, "second")


def test_half_a_model_is_not_left(workspace, tmp_path, monkeypatch):
    def fail(folder):
        raise OSError("disk full")

    monkeypatch.setattr(workspace.model, "save_pretrained", fail)
    with pytest.raises(OSError, match="disk full"):
        save_edited(workspace.model, (), tmp_path, "model")
    assert list(tmp_path.iterdir()) == []
