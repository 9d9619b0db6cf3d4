"""What edited prototypes say of encoded images is what the model itself would say."""

from dataclasses import replace

import pytest
import torch

from protoflows.app.edits import Merge, SwitchOff
from protoflows.app.encoded import answer, encode_split, explained, nearest_images
from protoflows.app.score import compare, score
from protoflows.evaluation.predict import predict_images
from protoflows.explain.neighbours import find_neighbours


@pytest.fixture(scope="module")
def some(workspace):
    split, _ = workspace.measured()
    return split.select(torch.arange(24))


@pytest.fixture(scope="module")
def encoded(model, some):
    return encode_split(model, some, samples=3)


@pytest.mark.parametrize("edits", [(), (SwitchOff((3, 1)), Merge((5, 0), (5, 1)))])
@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_answers_are_those_of_a_pass_through_the_flow(
    workspace, encoded, some, edits, temperature, monkeypatch
):
    edited = workspace.edited(edits)
    monkeypatch.setattr(edited, "config", replace(edited.config, variance_temperature=temperature))
    found, expected = answer(edited, encoded), predict_images(edited, some.images, samples=3)
    torch.testing.assert_close(found.log_proba.exp(), expected.proba.double())
    torch.testing.assert_close(found.log_prob, expected.log_prob.double())
    torch.testing.assert_close(found.log_prob_mean, expected.log_prob_mean.double())
    assert torch.equal(found.prototypes, expected.prototypes)


def test_progress_counts_all_batches(model, some):
    seen = []
    encode_split(model, some, samples=2, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


def test_neighbours_are_those_of_the_search_in_images(model, some, encoded):
    found = find_neighbours(model, some.images, num=4)
    for pair in ((0, 0), (7, 1)):
        assert torch.equal(nearest_images(model, encoded, pair, 4), found.nearest[pair])
    one = encode_split(model, some, samples=1)
    assert torch.equal(explained(model, one), found.explained)


def test_score_and_change(workspace, encoded, some):
    before = answer(workspace.model, encoded)
    edited = workspace.edited((SwitchOff((1, 0)), SwitchOff((2, 1))))
    after = answer(edited, encoded)
    was = score(workspace.model, before, some.labels)
    now = score(edited, after, some.labels)
    assert (was.prototypes, now.prototypes) == (20, 18)
    change = compare(before, after, some.labels)
    gained = round(24 * (now.accuracy.value - was.accuracy.value))
    assert change.mended - change.spoiled == gained
    assert change.changed >= change.mended + change.spoiled
    assert compare(before, before, some.labels) == (0, 0, 0)
