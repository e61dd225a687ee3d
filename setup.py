"""Everything about the package is in pyproject.toml, except the text that a package index shows, and the C++ code.

The text is README.md without its picture and with relative links as plain words: an index has neither the picture nor
the linked files, and a link to them would lead nowhere.

The C++ code is compiled where there is a compiler. Where there is none, or it fails, the package is installed all the
same: the code is then compiled on first use, or PyTorch computes instead.
"""

import re
import runpy
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).parent
SOURCE = Path("fedptr/compute/convnet.cpp")
RELATIVE = r"\((?!https?:|#)[^)]*\)"


def for_an_index(text: str) -> str:
    """The README without pictures (and the italic captions below them) and without relative links."""
    text = re.sub(rf"^!\[[^]]*\]{RELATIVE}\n+(\*[^*]+\*\n+)?", "", text, flags=re.MULTILINE)
    return re.sub(rf"\[([^]]+)\]{RELATIVE}", r"\1", text)


class BuildKernel(build_ext):
    """The libraries of `fedptr.compute.compiler`; ctypes loads them, so they suit every version of Python."""

    def run(self) -> None:
        place = HERE if self.inplace else Path(self.build_lib)
        try:
            build = runpy.run_path(str(HERE / "fedptr/compute/compiler.py"))["build_for_installation"]
            build(HERE / SOURCE, place / SOURCE.parent / "built")
        except Exception as error:
            print(f"{SOURCE.name} is left to be compiled on first use: {error}", file=sys.stderr)

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class PlatformWheel(bdist_wheel):
    """For one kind of machine, and every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    long_description=for_an_index((HERE / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    ext_modules=[Extension("fedptr.compute.built.convnet", [str(SOURCE)])],
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": PlatformWheel},
)
