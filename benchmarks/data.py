"""How long loading a data set and making one augmented batch take.

    python benchmarks/data.py                               # random images, 1x28x28
    python benchmarks/data.py --name mnist --root DATA_ROOT --batch 128

Prints the loading time and, per batch, the median and the 10 % to 90 % range over many batches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import torch

from protoflows.data import (
    Augment,
    AugmentConfig,
    Batch,
    DataBundle,
    DataConfig,
    SeededBatches,
    Split,
    TensorBatches,
    load_data,
)


def random_bundle(num: int, channels: int, size: int, seed: int = 0) -> DataBundle:
    """Random images: their content does not change the time."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(
        0, 256, (num, channels, size, size), dtype=torch.uint8, generator=generator
    )
    split = Split(images, torch.arange(num) % 10)
    return DataBundle("random", split, split, tuple("0123456789"), flip=True)


def time_each(make: Callable[[], object], repeats: int) -> list[float]:
    """Milliseconds of each of `repeats` calls, after a tenth as many to warm up."""
    for _ in range(max(1, repeats // 10)):
        make()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        make()
        times.append(1000 * (time.perf_counter() - start))
    return times


def endless(dataset: TensorBatches) -> Iterator[Batch]:
    """Epoch after epoch."""
    for epoch in count():
        dataset.seek(epoch)
        yield from dataset


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--name", default=None, help="data set or image folder (default: random)")
    parser.add_argument("--root", default=None, help="folder that holds the data set")
    parser.add_argument("--channels", type=int, default=1, help="of the random images")
    parser.add_argument("--size", type=int, default=28, help="side of the random images")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--threads", type=int, default=None, help="torch threads (default: all)")
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)

    start = time.perf_counter()
    if arguments.name is None:
        bundle = random_bundle(4096, arguments.channels, arguments.size)
    else:
        bundle = load_data(DataConfig(name=arguments.name, root=arguments.root))
    seconds = time.perf_counter() - start
    shape = "x".join(str(side) for side in bundle.image_shape)
    print(f"{bundle.name}: {len(bundle.train)} + {len(bundle.test)} images {shape}")
    print(f"loading: {seconds:.2f} s; torch threads: {torch.get_num_threads()}")

    order = SeededBatches(
        len(bundle.train), min(arguments.batch, len(bundle.train)), drop_last=True
    )
    setups = {
        "no augmentation": (None, False),
        "recipe (half unaugmented)": (AugmentConfig(), False),
        "paper (all augmented)": (AugmentConfig(share_unaugmented=0.0), False),
        "paper, two views": (AugmentConfig(share_unaugmented=0.0), True),
    }
    for label, (config, two_views) in setups.items():
        augment = None if config is None else Augment(config, bundle.levels, bundle.flip)
        dataset = TensorBatches(bundle.train, order, augment, two_views)
        stream = endless(dataset)
        times = time_each(partial(next, stream), arguments.repeats)
        deciles = statistics.quantiles(times, n=10)
        print(
            f"batch of {order.batch_size}, {label}: median {statistics.median(times):.2f} ms "
            f"({deciles[0]:.2f} to {deciles[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
