"""The ranks' status as a table in the notebook."""

from __future__ import annotations

import html

from ddp_magic.core.status import COLUMNS, SessionStatus


class StatusTable:
    """Shows a `SessionStatus`: a table in a notebook, aligned text elsewhere."""

    def __init__(self, status: SessionStatus) -> None:
        self.status = status

    def __repr__(self) -> str:
        return str(self.status)

    def _repr_html_(self) -> str:
        headline = f"<p>{html.escape(self.status.headline)}</p>"
        if not self.status.ranks:
            return headline
        head = _row("th", COLUMNS)
        body = "".join(_row("td", rank.cells()) for rank in self.status.ranks)
        return f"{headline}<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _row(tag: str, texts: tuple[str, ...]) -> str:
    cells = "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)
    return f"<tr>{cells}</tr>"
