"""Everything about the package is in pyproject.toml, except the text that a package index shows.

It is README.md without its picture and with relative links as plain words: an index has neither the picture nor the
linked files, and a link to them would lead nowhere.
"""

import re
from pathlib import Path

from setuptools import setup

RELATIVE = r"\((?!https?:|#)[^)]*\)"


def for_an_index(text: str) -> str:
    """The README without pictures (and the italic captions below them) and without relative links."""
    text = re.sub(rf"^!\[[^]]*\]{RELATIVE}\n+(\*[^*]+\*\n+)?", "", text, flags=re.MULTILINE)
    return re.sub(rf"\[([^]]+)\]{RELATIVE}", r"\1", text)


setup(
    long_description=for_an_index(Path(__file__).with_name("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
