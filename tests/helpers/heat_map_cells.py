"""The cells of a heat map as they are painted: what their numbers say, and whether that can be read."""

from __future__ import annotations

import io
import re
from typing import Any

from PIL import Image

Colour = tuple[int, ...]
# The numbers in the cells of a heat map: what it says, a place on the cell beside it, and its colour.
NUMBERS = """const place = arguments[0].getBoundingClientRect();
    return [...arguments[0].querySelectorAll(".textpoint text")].map((text) => {
        const box = text.getBoundingClientRect(), { fill } = getComputedStyle(text);
        return [text.textContent, box.left - 3 - place.left, (box.top + box.bottom) / 2 - place.top, fill]; })"""


def read_cells(browser: Any, figure: Any) -> tuple[list[tuple[str, Colour, Colour]], Colour]:
    """The number of every cell, its colour and that of the cell behind it; and the colour of the page."""
    browser.execute_script("arguments[0].scrollIntoView()", figure)
    texts = browser.execute_script(NUMBERS, figure)
    picture = Image.open(io.BytesIO(figure.screenshot_as_png)).convert("RGB")
    scale = picture.width / figure.size["width"]

    def colour_at(x: float, y: float) -> Colour:
        found = picture.getpixel((round(scale * x), round(scale * y)))
        assert isinstance(found, tuple)
        return found

    cells = [(text, tuple(map(int, re.findall(r"\d+", fill))), colour_at(x, y)) for text, x, y, fill in texts]
    return cells, colour_at(2, picture.height / scale - 2)


def luminance(colour: Colour) -> float:
    parts = [level / 255 / 12.92 if level <= 10 else ((level / 255 + 0.055) / 1.055) ** 2.4 for level in colour[:3]]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: Colour, other: Colour) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
