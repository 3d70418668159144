"""Fine-tunes a speech model to know spoken letters and digits: plain PyTorch, for one device.

The model is Silero VAD, which tells speech from other sounds; the package ``silero-vad`` brings its
weights. The recordings, one voice that says 0-9 and A-Z, are those of the package ``captcha``.
"""

from __future__ import annotations

import math
import wave
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from scipy.signal import resample_poly
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader, TensorDataset

SYMBOLS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
RATE = 16_000  # samples per second
CLIP = 12_800  # samples: 0.8 s
NOISE = 0.4  # of the voice's standard deviation
EPOCHS = 6
HEAD_ONLY = 1  # epochs
ACCUMULATE = 2  # batches per step
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_WINDOW, _CONTEXT, _PADDING = 512, 64, 64  # samples, as Silero VAD was trained
_BINS, _HIDDEN = 129, 128


def recording(symbol: str) -> np.ndarray:
    """Return what the voice says: samples at 8 kHz, of mean 0 and standard deviation 1."""
    with wave.open(str(files("captcha") / "data" / symbol / "default.wav")) as sound:
        samples = np.frombuffer(sound.readframes(sound.getnframes()), np.uint8).astype(np.float32)
    return (samples - samples.mean()) / samples.std()


def clips(per_symbol: int, seed: int) -> TensorDataset:
    """Return clips, and which symbol is said in each: at any speed and moment, in noise."""
    random = np.random.default_rng(seed)
    sounds = random.normal(0, NOISE, (len(SYMBOLS), per_symbol, CLIP)).astype(np.float32)
    for sound, symbol in zip(sounds, SYMBOLS, strict=True):
        said = recording(symbol)
        for clip in sound:
            voice = resample_poly(said, random.integers(14, 19), 8)[:CLIP]  # 16 is its own speed
            start = random.integers(CLIP - len(voice) + 1)
            clip[start : start + len(voice)] += voice
    labels = torch.arange(len(SYMBOLS)).repeat_interleave(per_symbol)
    return TensorDataset(torch.from_numpy(sounds).flatten(0, 1) / 20, labels)


class Speech(nn.Module):
    """Silero VAD at 16 kHz; its parameters have the names that they have in the package."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 2 * _BINS, kernel_size=256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(_BINS, 128, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, kernel_size=3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, kernel_size=3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, _HIDDEN, kernel_size=3, padding=1)
        self.lstm_cell = nn.LSTMCell(_HIDDEN, _HIDDEN)
        self.final_conv = nn.Conv1d(_HIDDEN, 1, kernel_size=1)

    def forward(self, sounds: Tensor) -> Tensor:
        """Return the LSTM's state in each window of 32 ms, [clip, window, feature]."""
        windows = pad(sounds, (_CONTEXT, 0)).unfold(1, _CONTEXT + _WINDOW, _WINDOW)
        clips, count, _ = windows.shape
        spectrum = self.stft_conv(pad(windows.flatten(0, 1)[:, None], (0, _PADDING), "reflect"))
        features = torch.hypot(spectrum[:, :_BINS], spectrum[:, _BINS:])
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            features = layer(features).relu()
        state, states = None, []
        for window in features.view(clips, count, _HIDDEN).unbind(1):
            state = self.lstm_cell(window, state)
            states.append(state[0])
        return torch.stack(states, dim=1)

    def probability(self, sounds: Tensor) -> Tensor:
        """Return how probable it is that somebody speaks, [clip, window]."""
        states = self(sounds).relu().transpose(1, 2)
        return self.final_conv(states).sigmoid().squeeze(1)


class Letters(nn.Module):
    """Which symbol is said: a linear layer over the states of the speech model."""

    def __init__(self, is_pretrained: bool = True) -> None:
        super().__init__()
        self.speech = Speech()
        self.head = nn.Linear(2 * _HIDDEN, len(SYMBOLS))
        weights = load_file(str(files("silero_vad") / "data" / "silero_vad_16k.safetensors"))
        if is_pretrained:
            self.speech.load_state_dict(weights)
        else:  # a Fourier transform is not learned
            self.speech.stft_conv.load_state_dict({"weight": weights["stft_conv.weight"]})

    def forward(self, sounds: Tensor) -> Tensor:
        states = self.speech(sounds)
        return self.head(torch.cat([states.mean(dim=1), states.amax(dim=1)], dim=1))


class FineTuning:
    """A model on its way from speech to letters."""

    def __init__(self, is_pretrained: bool = True) -> None:
        torch.manual_seed(0)
        self.model = Letters(is_pretrained).to(DEVICE)
        self.order = torch.Generator().manual_seed(0)  # of the clips, whatever else is drawn
        self.loader = DataLoader(
            clips(per_symbol=16, seed=0), batch_size=24, shuffle=True, generator=self.order
        )
        self.test_loader = DataLoader(clips(per_symbol=6, seed=1), batch_size=72)
        speech = self.model.speech
        self.upper = nn.ModuleList([speech.conv3, speech.conv4, speech.lstm_cell])
        self.head_only = HEAD_ONLY
        if not is_pretrained:
            self.upper.extend([speech.conv1, speech.conv2])
            self.head_only = 0
        groups = [
            {"params": self.model.head.parameters(), "lr": 0.02},
            {"params": self.upper.parameters(), "lr": 0.006},
        ]
        # With a small `eps` a gradient that is mostly rounding makes a whole step, too, and devices
        # round differently. Random weights need it: their gradients are small.
        self.optimizer = torch.optim.AdamW(groups, eps=1e-3 if is_pretrained else 1e-8)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._rate)

    @property
    def epoch(self) -> int:
        """How many epochs are over."""
        return self.schedule.last_epoch * ACCUMULATE // len(self.loader)

    def _rate(self, step: int) -> float:
        done = step * ACCUMULATE / (EPOCHS * len(self.loader))
        return min(done / 0.1 + 0.1, 0.5 + 0.5 * math.cos(math.pi * done))

    def train(self, last_epoch: int) -> None:
        """Go on to the end of an epoch."""
        while self.epoch < last_epoch:
            self.model.requires_grad_(False)
            self.model.head.requires_grad_(True)
            self.upper.requires_grad_(self.epoch >= self.head_only)
            for batch, (sounds, labels) in enumerate(self.loader, start=1):
                loss = cross_entropy(self.model(sounds.to(DEVICE)), labels.to(DEVICE))
                (loss / ACCUMULATE).backward()
                if batch % ACCUMULATE == 0:
                    nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.optimizer.step()
                    self.schedule.step()
                    self.optimizer.zero_grad()

    @torch.no_grad()
    def heard(self) -> Tensor:
        """Return which symbol is heard in each test clip, [symbol that is said, clip]."""
        heard = [self.model(sounds.to(DEVICE)).argmax(dim=1) for sounds, _ in self.test_loader]
        return torch.cat(heard).view(len(SYMBOLS), -1).cpu()

    def accuracy(self) -> float:
        """Return the share of the test clips in which the right symbol is heard."""
        return (self.heard() == torch.arange(len(SYMBOLS))[:, None]).float().mean().item()

    def state_dict(self) -> dict[str, Any]:
        """Return what it takes to go on later, on any number of devices."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "order": self.order.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Be as another was when its `state_dict` was made."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.order.set_state(state["order"].cpu())
