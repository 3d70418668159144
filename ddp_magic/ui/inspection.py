"""The ranks' variables, and what differs between them, as tables in the notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import fields
from itertools import groupby

from ddp_magic.core.difference import Difference
from ddp_magic.core.vartable import DIFFERS, SAMPLED, Variable, Variables

# Fixed, and legible in either theme: an untrusted notebook keeps no theme variable, and no <style>.
_TABLE = '<table style="color: inherit">'
_MUTED = "color: #808080; font-size: 0.9em"
_LEFT = "text-align: left"
_MARKED = f"{_LEFT}; border-left: 3px solid #ea7317"
_MARKS = {DIFFERS: "color: #ea7317; font-weight: bold", SAMPLED: "color: #808080"}


class VariablesView(Variables):
    """Shows `Variables`: a table of names and ranks in a notebook, aligned text elsewhere."""

    @classmethod
    def of(cls, variables: Variables) -> VariablesView:
        """Show these."""
        return cls(*(getattr(variables, field.name) for field in fields(variables)))

    def _repr_html_(self) -> str:
        columns = sorted({*self.ranks, *self.missing})
        names = ["", "name", "type", *(f"rank {rank}" for rank in columns), "memory", ""]
        head = "".join(_cell("th", html.escape(name)) for name in names)
        body = "".join(self._row(row, columns) for row in self.rows)
        table = f"{_TABLE}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        notes = _notes([self.headline]), _notes(self.notes())
        return f"{notes[0]}{_scrolling(table) if self.rows else ''}{notes[1]}"

    def _row(self, row: Variable, columns: list[int]) -> str:
        values = [self._value(row, rank) for rank in columns]
        spans = ((text, len(list(same))) for text, same in groupby(values))
        mark = row.mark if len(self.ranks) > 1 else ""
        marked = f'<span style="{_MARKS[mark]}">{mark}</span>' if mark else ""
        cells = [
            _cell("td", marked),
            _cell(
                "td", f"<b>{html.escape(row.name)}</b>" if row.differs else html.escape(row.name)
            ),
            _cell("td", html.escape(row.kinds())),
            *(_cell("td", text, span) for text, span in spans),
            _cell("td", html.escape(row.memory())),
            _cell("td", html.escape(row.how)),
        ]
        return f"<tr>{''.join(cells)}</tr>"

    def _value(self, row: Variable, rank: int) -> str:
        if rank in self.missing:
            return f'<span style="{_MUTED}">no answer</span>'
        if rank not in row.on:
            return f'<span style="{_MUTED}">none</span>'
        return html.escape(row.on[rank].text)


class DifferenceView(Difference):
    """Shows a `Difference`: what differs as a table in a notebook, aligned text elsewhere."""

    @classmethod
    def of(cls, difference: Difference) -> DifferenceView:
        """Show this one."""
        return cls(*(getattr(difference, field.name) for field in fields(difference)))

    def _repr_html_(self) -> str:
        style = _MARKED if len(self.groups) > 1 else _LEFT
        headline = f'<div style="{style}; padding-left: 5px">{html.escape(self.headline)}</div>'
        rows = "".join(
            f"<tr>{''.join(_cell('td', html.escape(text)) for text in row)}</tr>"
            for row in self.rows()
        )
        head = "".join(_cell("th", name) for name in ("differs", "on", "how"))
        table = f"{_TABLE}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        return f"{headline}{_scrolling(table) if rows else ''}{_notes(self.notes())}"


def _cell(tag: str, content: str, span: int = 1) -> str:
    wide = f' colspan="{span}"' if span > 1 else ""
    return f'<{tag}{wide} style="{_LEFT}">{content}</{tag}>'


def _notes(lines: Iterable[str]) -> str:
    return "".join(f'<div style="{_MUTED}">{html.escape(line)}</div>' for line in lines)


def _scrolling(table: str) -> str:
    return f'<div style="overflow-x: auto">{table}</div>'
