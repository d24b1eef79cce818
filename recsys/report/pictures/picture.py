"""A picture of the report: drawn for a desktop and for a phone, and said in words."""

from __future__ import annotations

import dataclasses

from markupsafe import Markup


@dataclasses.dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        title: What it shows; may be empty.
        wide: It for a desktop, as SVG.
        narrow: It for a phone.
        caption: It in words.
    """

    title: str
    wide: Markup
    narrow: Markup
    caption: str
