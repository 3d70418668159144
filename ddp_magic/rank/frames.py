"""Whose code a frame runs: the user's, or a library's."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import FrameType
from typing import Final

import torch

_PARENT: Final = str(Path(__file__).parents[2])
_LIBRARIES: Final = (
    f"{Path(__file__).parents[1]}/",
    f"{Path(torch.__file__).parent}/",
    f"{sysconfig.get_path('stdlib')}/",
)


def is_library(frame: FrameType) -> bool:
    """Tell whether a frame runs code of this package, of torch, of Python or of one installed."""
    filename = frame.f_code.co_filename
    return filename.startswith(_LIBRARIES) or "-packages/" in filename


def as_imported(filename: str) -> str:
    """Return ``torch/nn/modules/module.py`` of a file that is imported as that, else the same.

    Where packages are installed tells nothing of a rank, and is in the way where it is shown.
    """
    folders = [f"{folder}/" for folder in (*sys.path, _PARENT) if folder]
    within = [folder for folder in folders if filename.startswith(folder)]
    return filename[len(max(within, key=len, default="")) :]


def library_user(frame: FrameType | None) -> FrameType | None:
    """Return the nearest frame, from ``frame`` outwards, that runs the user's own code."""
    while frame is not None and is_library(frame):
        frame = frame.f_back
    return frame
