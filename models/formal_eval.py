"""A trained model of a formal language, judged again or on strings of other lengths."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import fwgen

from . import checkpoint
from .data.formal import LANGUAGES
from .data.language import Window
from .formal import Bin, Labeller, draw_bins, judge
from .lm import LMConfig
from .settings import at_least, device_of


@dataclass(frozen=True)
class Loaded:
    """A trained model for use."""

    name: str
    model: Labeller
    language: str
    windows: tuple[Window, ...]  # that it was judged on, those of the training first
    strings: int  # of each
    batch: int
    seed: int
    step: int


def load(path: Path, device: str = "cpu") -> Loaded:
    """A model from a checkpoint or a run's folder (its best one); needs no other file.

    Raises ArgumentError when it is of another task.
    """
    found = checkpoint.read(path)
    about = found.run["about"]
    if about["task"] != "formal":
        raise fwgen.ArgumentError(
            f"checkpoint: expected a formal language, {found.path} is of the task {about['task']}"
        )
    device_of(device)
    text = json.loads(found.texts["language"])
    name, config = text["language"], about["config"]
    shape = LMConfig.from_json(found.texts["model"], found.texts.get("rule"))
    model = Labeller(shape, len(LANGUAGES[name].classes))
    model.load_state_dict(found.group("model"))
    return Loaded(
        about["name"],
        model.eval().to(device),
        name,
        tuple((low, high) for low, high in text["windows"]),
        config["eval_strings"],
        config["batch"],
        config["seed"],
        found.run["progress"]["step"],
    )


@torch.no_grad()
def evaluate(
    found: Loaded, windows: Sequence[Window] = (), strings: int = 0, device: str = "cpu"
) -> dict[str, float]:
    """The part of right strings by length: of the held-out ones of the training unless `windows`
    or their number are given.
    """
    language = LANGUAGES[found.language]
    at_least("strings", strings, 0)
    for window in windows:
        language.sizes(window)
    rng = random.Random(found.seed + 1_000_000)  # as in the training
    drawn = draw_bins(language, windows or found.windows, strings or found.strings, rng)
    bins = [Bin.of(language, window, words, found.batch) for window, words in drawn]
    return judge(found.model, bins, device)
