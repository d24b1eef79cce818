"""Untrusted text where people read it: what a terminal would obey is written as an escape."""

from __future__ import annotations

import re

# Controls, C1 too; signs that turn the direction or the line; marks and tags without a shape;
# and halves of characters, as file names that are no UTF-8 have. Joiners, which Persian and
# Hindi words and many emoji need, stay.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str, but: str = "") -> str:
    r"""Returns text with its controls as escapes, as `\x1b`.

    Args:
        text: From data, file names or anybody.
        but: Controls that stay, such as the line feed of a text of several lines.
    """
    return _HIDDEN.sub(lambda sign: sign[0] if sign[0] in but else ascii(sign[0])[1:-1], text)
