"""The console that every command writes to people on; what data holds can't command it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment

from recsys.visible import visible


class Console(rich.console.Console):
    """A console on which controls are visible, and `[red]` or `:smile:` are text.

    Args:
        options: As rich's console has them.
    """

    def __init__(self, **options: Any) -> None:
        plain = {"markup": False, "emoji": False, "highlight": False}
        super().__init__(**{**plain, **options})

    def render(
        self, renderable: Any, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yields the parts of what is printed; their styles alone become controls."""
        for segment in super().render(renderable, options):
            if segment.control is None:
                yield Segment(visible(segment.text, but="\n"), segment.style)
            else:
                yield segment
