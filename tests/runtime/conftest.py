"""A rule without the compiler: the delta rule, its kernels written by hand."""

from pathlib import Path

import pytest
import torch
from hand_delta import delta_signature, draw

from fwgen.runtime.op import CompiledRule

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def sources() -> dict[str, str]:
    return {
        "cpu.cpp": (HERE / "delta.cpp").read_text(encoding="utf-8"),
        "reference.py": (HERE / "delta_reference.py").read_text(encoding="utf-8"),
    }


@pytest.fixture(scope="session")
def op(sources, tmp_path_factory) -> CompiledRule:
    """The rule, its kernels built into a folder of this session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FWGEN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        rule = CompiledRule(delta_signature(), sources, "the rule")
        for dtype in (torch.float32, torch.float64):
            rule(*draw(1, dtype=dtype).values(), backend="cpu")
    return rule


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """The folder of built libraries, which does not exist yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FWGEN_CACHE_DIR", str(folder))
    return folder
