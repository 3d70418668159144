"""Whose code a frame runs: the user's, or a library's."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import FrameType
from typing import Final

import torch

_LIBRARIES: Final = (
    f"{Path(__file__).parents[1]}/",
    f"{Path(torch.__file__).parent}/",
    f"{sysconfig.get_path('stdlib')}/",
)


def is_library(frame: FrameType) -> bool:
    """Tell whether a frame runs code of this package, of torch, of Python or of one installed."""
    filename = frame.f_code.co_filename
    return filename.startswith(_LIBRARIES) or "-packages/" in filename


def library_user(frame: FrameType | None) -> FrameType | None:
    """Return the nearest frame, from ``frame`` outwards, that runs the user's own code."""
    while frame is not None and is_library(frame):
        frame = frame.f_back
    return frame
