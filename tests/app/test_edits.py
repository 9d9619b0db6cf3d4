"""Edits: replayed, taken back, and never anybody else's."""

import pytest
import torch

from protoflows.app.edits import (
    Merge,
    Rename,
    SwitchOff,
    apply_edit,
    clean_name,
    describe,
    merged_into,
    merges_of,
    switch_on,
    switched_off,
)


def test_edits_leave_the_model_alone_and_share_its_flow(workspace, model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    edits = (SwitchOff((3, 1)), Merge((5, 0), (5, 1)), Rename((0, 1), "round"))
    edited = workspace.edited(edits)
    assert edited is not model
    assert edited.flow is model.flow
    assert not edited.training
    assert not edited.mixtures.mask[3, 1]
    assert not edited.mixtures.mask[5, 1]
    assert float(edited.mixtures.weights.detach()[5, 0]) == pytest.approx(1)
    assert edited.config.prototype_names == {(0, 1): "round"}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert model.config.prototype_names == {}
    assert bool(model.mixtures.mask.all())


def test_the_same_edits_are_one_model_and_none_are_the_model(workspace, model):
    edits = (SwitchOff((3, 1)),)
    assert workspace.edited(edits) is workspace.edited((SwitchOff((3, 1)),))
    assert workspace.edited(edits[:-1]) is model


def test_switching_on_is_leaving_out(workspace):
    edits = (SwitchOff((3, 1)), SwitchOff((4, 0)), Rename((4, 1), "four"))
    assert switched_off(edits) == {(3, 1), (4, 0)}
    left = switch_on(edits, (3, 1))
    assert left == edits[1:]
    assert workspace.edited(left).mixtures.mask[3].tolist() == [True, True]


def test_what_was_merged():
    merge = Merge((5, 0), (5, 1))
    assert merged_into((SwitchOff((1, 1)), merge)) == {(5, 1): (5, 0)}
    assert merges_of((SwitchOff((5, 1)), merge), 5) == (merge,)
    assert merges_of((merge,), 4) == ()


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ((SwitchOff((3, 0)), SwitchOff((3, 1))), "without a prototype"),
        ((Merge((3, 0), (4, 0)),), "one class"),
        ((Merge((3, 0), (3, 0)),), "different"),
        ((Rename((3, 0), "x" * 61),), "60 characters"),
        ((SwitchOff((3, 1)), SwitchOff((3, 1))), "switched off"),
    ],
)
def test_what_cannot_be_is_refused(model, edits, words):
    for edit in edits[:-1]:
        model = apply_edit(model, edit)
    with pytest.raises(ValueError, match=words):
        apply_edit(model, edits[-1])


def test_names_are_one_printable_line():
    assert clean_name("  a\nb\tc\u202e\x00 ") == "a b c"


def test_words(model):
    assert describe(model, SwitchOff((3, 1))) == "3 · prototype 1 switched off"
    assert describe(model, Merge((3, 1), (3, 0))) == "3 · prototype 1 took in prototype 0"
    assert describe(model, Rename((3, 1), "a")) == "3 · prototype 1 named “a”"
    assert describe(model, Rename((3, 1), " ")) == "3 · prototype 1 lost its name"


def test_means_move_by_merging_alone(workspace):
    plain = workspace.mean_images((), 5)
    assert workspace.mean_images((SwitchOff((5, 1)),), 5) is plain
    assert set(plain) == {(5, 0), (5, 1)}
    merged = workspace.mean_images((Merge((5, 0), (5, 1)),), 5)
    assert torch.equal(merged[5, 1], plain[5, 1])
    assert not torch.equal(merged[5, 0], plain[5, 0])
    assert workspace.mean_images((Merge((5, 0), (5, 1)),), 4) is workspace.mean_images((), 4)
