import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protoflows.model import image_seeds


@given(
    start=st.integers(0, 10**9),
    num=st.integers(0, 20),
    cut=st.integers(0, 20),
    sample=st.integers(0, 10**6),
    seed=st.integers(-(2**70), 2**70),
)
def test_a_batch_is_its_parts(start, num, cut, sample, seed):
    cut = min(cut, num)
    whole = image_seeds(start, num, sample, seed)
    parts = [
        image_seeds(start, cut, sample, seed),
        image_seeds(start + cut, num - cut, sample, seed),
    ]
    assert torch.equal(whole, torch.cat(parts))
    assert whole.dtype == torch.int64
    assert (whole >= 0).all()


def test_nothing_is_shared_in_the_bits_that_generators_read():
    seeds = torch.cat([image_seeds(0, 100, s, seed) for s in range(10) for seed in range(3)])
    low = seeds & 0xFFFFFFFF
    assert len(low.unique()) == 3000
    assert 0.45 < float((low & 1).double().mean()) < 0.55


def test_index_sample_and_seed_are_not_interchangeable():
    assert image_seeds(1, 1, 2, 3) != image_seeds(2, 1, 1, 3)
    assert image_seeds(1, 1, 2, 3) != image_seeds(1, 1, 3, 2)
    assert image_seeds(0, 1, 1, 0) != image_seeds(1, 1, 0, 0)


def test_negative_places_are_refused():
    with pytest.raises(ValueError, match="must be ≥ 0, got -1, 2 and 3"):
        image_seeds(-1, 2, 3, 0)
