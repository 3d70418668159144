"""What stands above a cell's curves: a chip for each rank, one line of numbers, a bar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ddp_magic.core.ranks import told_of_each
from ddp_magic.core.runstate import Doing, Pulse, RankState, RunState
from ddp_magic.core.vartable import size_text
from ddp_magic.ui.style import number

# Beside the colour, so that nobody needs that.
_SIGNS: Final = {
    Doing.RUNS: "▸",
    Doing.WAITS: "…",
    Doing.STOPPED: "‖",
    Doing.ENDED: "✓",
    Doing.FAILED: "×",  # noqa: RUF001
    Doing.DIED: "†",
    Doing.SILENT: "?",
}
_MOST_WITH_WORDS: Final = 8  # ranks: with more of them a chip shows its sign alone


def head_of(state: RunState) -> dict[str, Any]:
    """Return what is shown, as JSON.

    Returns
    -------
    dict
        ``chips``: rank, ``doing``, ``text`` and ``title`` of each; ``told``: a line on those that
        do not simply run; ``facts``: numbers in words; ``progress``: ``[done, of]`` or None.
    """
    brief = len(state.ranks) > _MOST_WITH_WORDS
    return {
        "chips": [_chip(r, one, brief, state.latest.get(r)) for r, one in state.ranks.items()],
        "told": _told(state.ranks) if brief else "",
        "facts": facts_of(state),
        "progress": state.progress,
        "batch": state.batch,
    }


def facts_of(state: RunState) -> list[str]:
    """Return step, rates, waiting and memory in words, those that are known."""
    facts = [f"step {state.step:,}"] if state.step else []
    if state.steps_per_s:
        facts.append(f"{number(state.steps_per_s)} steps/s")
    if state.samples_per_s:
        facts.append(f"{number(state.samples_per_s)} samples/s")
    if state.waiting_share is not None:
        facts.append(f"{state.waiting_share:.0%} waiting for gradients")
    if state.memory_bytes:
        facts.append(f"{size_text(state.memory_bytes)} a rank")
    if state.device_bytes:
        facts.append(_gpu(state.device_bytes, state.device_use))
    return facts


def _gpu(device_bytes: tuple[int, int], use: float | None) -> str:
    used, there = map(size_text, device_bytes)
    return f"GPU {used} of {there}" + (f", {use:.0%} busy" if use is not None else "")


def _chip(rank: int, one: RankState, brief: bool, pulse: Pulse | None) -> dict[str, Any]:
    shown = _SIGNS[one.doing] if brief else f"{_SIGNS[one.doing]} {_short(one)}"
    return {
        "rank": rank,
        "doing": one.doing.value,
        "text": f"{rank} {shown}",
        "title": "; ".join([f"rank {rank} {one.words}", *_takes(pulse)]),
    }


def _takes(pulse: Pulse | None) -> list[str]:
    """Return what a rank takes of the machine, in words."""
    told = [size_text(pulse.memory_bytes)] if pulse and pulse.memory_bytes else []
    if pulse and pulse.device_bytes:
        told.append(_gpu(pulse.device_bytes, pulse.device_use))
    return told


def _short(one: RankState) -> str:
    return one.words if one.doing in (Doing.WAITS, Doing.STOPPED) else one.doing.value


def _told(ranks: Mapping[int, RankState]) -> str:
    return "; ".join(told_of_each({rank: one.words for rank, one in ranks.items()}))
