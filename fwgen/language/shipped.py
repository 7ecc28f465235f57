"""The rules and feature maps that come with the package, as files beside it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fwgen.ir.dims import Dim
from fwgen.language import yaml_file
from fwgen.language.declarations import parse_number
from fwgen.language.dims import parse_dim
from fwgen.language.features import FeatureMap, Tensor
from fwgen.language.grammar import parse
from fwgen.language.source import Report, Text
from fwgen.language.yaml_file import Mapping, Node

PACKAGE = Path(__file__).resolve().parent.parent
RULES, FEATURES = PACKAGE / "rules", PACKAGE / "features"
FUNCTIONS_AS_MAPS = ("l2norm", "softmax", "sum_normalize")


def list_rules() -> tuple[str, ...]:
    """Names of the shipped rules, sorted."""
    return tuple(sorted(path.stem for path in RULES.glob("*.yaml")))


def list_feature_maps() -> tuple[str, ...]:
    """Names of the shipped feature maps, those that are functions of the language included."""
    return tuple(sorted({path.stem for path in FEATURES.glob("*.yaml")} | {*FUNCTIONS_AS_MAPS}))


def rule_path(name: str) -> Path:
    """The file of a shipped rule."""
    return RULES / f"{name}.yaml"


@cache
def feature_maps() -> dict[str, FeatureMap]:
    """The shipped feature maps that are files, by name."""
    return {path.stem: _feature_map(path) for path in sorted(FEATURES.glob("*.yaml"))}


def _feature_map(path: Path) -> FeatureMap:
    file = yaml_file.decode(path.name, path.read_bytes())
    report = Report()
    document = yaml_file.read(file, report)
    inputs = _entries(document.get("inputs"))
    options = {}
    for name, node in _entries(document.get("constants")).items():
        assert isinstance(node, Text)
        value = parse_number(node.value)
        assert value is not None
        options[name] = value
    tensors = {}
    for section, role in (("params", "param"), ("buffers", "buffer")):
        for name, node in _entries(document.get(section)).items():
            tensors[name] = Tensor(role, _dims(node))
    text = document.get("output")
    assert isinstance(text, Text)
    body = parse(text, report)
    report.check()
    shapes = tuple(_dims(node) for node in inputs.values())
    content = "\n".join(file.lines)
    return FeatureMap(path.stem, tuple(inputs), body, True, shapes, options, tensors, content)


def _entries(node: Node | None) -> dict[str, Node]:
    if not isinstance(node, Mapping):
        return {}
    return {key.value: value for key, value in node.entries}


def _dims(node: Node) -> tuple[Dim, ...]:
    if isinstance(node, Text):
        return () if node.value == "scalar" else (parse_dim(node.value, {}),)
    assert isinstance(node, yaml_file.Sequence)
    return tuple(parse_dim(item.value, {}) for item in node.items if isinstance(item, Text))
