"""What ``%ddp doctor`` has found, in the notebook."""

from __future__ import annotations

import html
from typing import Any

from IPython.display import DisplayHandle

from ddp_magic.core.doctor.finding import Diagnosis, Finding, Verdict
from ddp_magic.core.doctor.frontend import Frontend, widgets_answered, widgets_not_answered
from ddp_magic.ui.inputbox import no_input
from ddp_magic.ui.page import has_a_page

# Fixed, and legible in either theme: an untrusted notebook keeps no theme variable, and no <style>.
_TABLE = '<table style="color: inherit">'
_LEFT = "text-align: left"
_MARKS = {  # the words tell; the colours only help to find them
    Verdict.OK: "color: #808080",
    Verdict.DEGRADED: "color: #ea7317; font-weight: bold",
    Verdict.WRONG: "color: #e03131; font-weight: bold; text-decoration: underline",
}


def frontend_of(shell: Any) -> Frontend:
    """Return what is known of whoever shows the cell that runs."""
    has_page = has_a_page(shell)
    return Frontend(
        has_kernel=getattr(shell, "kernel", None) is not None,
        has_page=has_page,
        widget_error=_widget_error() if has_page else "",
        no_input=no_input(shell),
    )


class DoctorView:
    """Shows a `Diagnosis`: a table in a notebook, aligned text elsewhere.

    Parameters
    ----------
    frontend
        Who shows it.
    """

    def __init__(self, diagnosis: Diagnosis, frontend: Frontend) -> None:
        self.diagnosis = diagnosis
        self._frontend = frontend
        self._output = DisplayHandle()

    @property
    def problems(self) -> tuple[Finding, ...]:
        """What is wrong, then what is degraded: each with its check, verdict, text and fix."""
        return self.diagnosis.problems

    def __repr__(self) -> str:
        return str(self.diagnosis)

    def _repr_html_(self) -> str:
        headline = f"<p>{html.escape(self.diagnosis.headline)}</p>"
        rows = "".join(map(_row, self.diagnosis.findings))
        return (
            f'{headline}<div style="overflow-x: auto">{_TABLE}<tbody>{rows}</tbody></table></div>'
        )

    def _ipython_display_(self) -> None:
        """Show it, and ask the page, if there is one, whether it runs widgets."""
        self._output.display(self._bundle(), raw=True)
        if self._frontend.has_page and not self._frontend.widget_error:
            from ddp_magic.ui.pageprobe import PageProbe

            PageProbe(self._page_has_answered, widgets_not_answered())

    def _page_has_answered(self) -> None:
        self.diagnosis = self.diagnosis.changed(widgets_answered())
        self._output.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def _row(finding: Finding) -> str:
    verdict = f'<span style="{_MARKS[finding.verdict]}">{finding.verdict.value}</span>'
    fix = f"<div>→ {html.escape(finding.fix)}</div>" if finding.fix else ""
    cells = (verdict, html.escape(finding.check), html.escape(finding.text) + fix)
    return "<tr>" + "".join(f'<td style="{_LEFT}">{cell}</td>' for cell in cells) + "</tr>"


def _widget_error() -> str:
    try:
        import ddp_magic.ui.figure  # noqa: F401
    except ImportError as error:
        return str(error)
    return ""
