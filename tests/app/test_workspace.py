"""Models with all their data, some of it, or none."""

import pytest
import torch

from protoflows.app.others import INVERTED, NOISE, SHUFFLED, UPSIDE_DOWN, load_others
from protoflows.app.workspace import open_workspace
from protoflows.model import load


def test_a_run_has_its_splits(workspace):
    assert workspace.name == "digits-run"
    assert workspace.notes == ()
    assert len(workspace.measured()[0]) == 200
    assert workspace.measured()[1] == "200 test images"
    # Fewer validation images than measure anything: the test images stand in.
    assert len(workspace.validation) < 200
    assert workspace.held_out() is not None
    assert workspace.neighbourhood()[1] == "a sample of 200 training images"


def test_a_shipped_model_finds_its_data_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = open_workspace("digits", limit=50)
    assert found.home is None
    assert found.notes == ()
    assert found.measured()[1] == "50 test images"
    assert found.train is not None


def test_a_model_without_any_data(saved_model):
    found = open_workspace(str(saved_model))
    assert "came without its data" in found.notes[0]
    assert found.measured() is None
    assert found.held_out() is None
    assert found.other_kinds() == ()
    images, kind = found.examples()
    assert len(images) > 0
    assert kind == "training images saved with the model"
    assert found.neighbourhood()[1] == "the few training images saved with the model"


def test_a_model_with_no_images_at_all(saved_model):
    found = open_workspace(str(saved_model))
    found.model.extras = None
    assert found.examples() is None
    assert found.neighbourhood() is None


def test_data_that_moved_away(run_folder, tmp_path):
    found = open_workspace(str(run_folder), data_root=str(tmp_path / "nowhere"))
    # Digits come with scikit-learn, wherever the root is said to be.
    assert found.notes == ()


@pytest.mark.parametrize("kind", [UPSIDE_DOWN, INVERTED, SHUFFLED, NOISE])
def test_images_of_another_kind(workspace, kind):
    own, other = workspace.measured()[0].images, workspace.other(kind).images
    assert other is workspace.other(kind).images
    assert other.shape == own.shape
    assert other.dtype == torch.uint8
    assert int(other.max()) <= 16
    assert not torch.equal(other, own)
    if kind == SHUFFLED:
        assert torch.equal(other.flatten(1).sort().values, own.flatten(1).sort().values)
    if kind == INVERTED:
        assert torch.equal(own + other, torch.full_like(own, 16))


def test_another_data_set(saved_model, run_folder):
    # A model of something else gets scikit-learn's digits; a model of digits does not.
    found = load_others(load(saved_model), (), None)
    assert [*found] == ["digits, another data set"]
    assert tuple(found["digits, another data set"].images.shape) == (300, 1, 8, 8)
    assert open_workspace(str(run_folder)).others == {}
    with pytest.raises(ValueError, match="no images 'xyz'"):
        open_workspace(str(run_folder)).other("xyz")
    with pytest.raises(ValueError, match="unknown data set 'digit5'"):
        open_workspace(str(run_folder), ood=["digit5"])


def test_limits_are_checked(run_folder):
    with pytest.raises(ValueError, match="images must be at least 1"):
        open_workspace(str(run_folder), limit=0)
