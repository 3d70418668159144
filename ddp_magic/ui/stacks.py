"""Where every rank is, in the notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator

from ddp_magic.core.stacks import StackGroup, Stacks

# In pages that nbconvert makes, nothing else tells that these are lines of code.
_LINES_STYLE = "font-family: var(--jp-code-font-family, monospace); margin-left: 2em"
_FOLDED_STYLE = "color: #808080"  # legible in either theme


class StacksView:
    """Shows `Stacks`: in a notebook with the frames of libraries folded, as text elsewhere."""

    def __init__(self, stacks: Stacks) -> None:
        self.stacks = stacks

    def __repr__(self) -> str:
        return str(self.stacks)

    def _repr_html_(self) -> str:
        told = [self.stacks.headline, *([self.stacks.clash] if self.stacks.clash else [])]
        paragraphs = [f"<p>{html.escape(line)}</p>" for line in told]
        return "".join([*paragraphs, *map(_group, self.stacks.told)])


def _group(group: StackGroup) -> str:
    return "".join(_parts(group))


def _parts(group: StackGroup) -> Iterator[str]:
    yield f"<p><b>{html.escape(group.headline)}</b></p>"
    if group.users:
        yield _lines(group.users)
    if group.folded:
        summary = f'<summary style="{_FOLDED_STYLE}">… {html.escape(group.folded)}</summary>'
        yield f"<details>{summary}{_lines(group.full())}</details>"


def _lines(lines: Iterable[str]) -> str:
    return f'<pre style="{_LINES_STYLE}">{html.escape(chr(10).join(lines))}</pre>'
