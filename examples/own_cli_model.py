"""Your own model and images on the command line; run this in the folder with this file and own.npz:

    fedptr run --model own_cli_model:make_model --dataset own.npz --clients 4 --rounds 8 --batch 16 --set method.H=3

own.npz is written by np.savez("own.npz", train_x=…, train_y=…, test_x=…, test_y=…): images [n, H, W], or with 1 or 3
channels, in uint8 or float, and labels 0, 1, 2 … Means and deviations are those of the training images.
"""

from torch import nn


def make_model(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Called with shape = (channels, height, width); the run's seed draws the weights."""
    channels, _, _ = shape
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.GroupNorm(8, 8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(8 * 4 * 4, classes),
    )  # fmt: skip
