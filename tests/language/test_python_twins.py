"""Every shipped rule written as a decorated function means what its file means."""

import ast
import importlib.util
from pathlib import Path

import pytest

import fwgen
from fwgen.language.source import Text
from fwgen.language.yaml_file import Mapping, Node, Sequence


def literal(node: Node) -> str:
    """A declaration as Python writes it."""
    match node:
        case Text():
            return repr(node.value)
        case Sequence(items):
            return f"[{', '.join(map(literal, items))}]"
        case Mapping(entries):
            return f"{{{', '.join(f'{key.value!r}: {literal(part)}' for key, part in entries)}}}"


def twin(rule: fwgen.Rule) -> str:
    """A module with the rule as the function `made`."""
    sections = [f"name={rule.name!r}", f"doc={rule.doc!r}", f"constants={rule.constants!r}"]
    for section in ("inputs", "params", "buffers", "state", "feature_map"):
        node = rule.document.get(section)
        sections += [] if node is None else [f"{section}={literal(node)}"]
    output = rule.output.split("\n")
    value = ast.parse(rule.output).body[-1].lineno - 1
    body = [*rule.update.split("\n"), *output[:value]]
    body.append("return " + "\n".join(output[value:]))
    lines = "\n".join(body).replace("\n", "\n    ")
    head = ",\n    ".join(sections)
    taken = ", ".join(rule.inputs)
    return f"import fwgen\n\n@fwgen.rule(\n    {head},\n)\ndef made({taken}):\n    {lines}\n"


def made(text: str, folder: Path) -> fwgen.Rule:
    path = folder / "twin.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("twin", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return fwgen.load_rule(module.made)


def meaning(rule: fwgen.Rule) -> object:
    """The step without line numbers."""
    step = rule.step
    statements = [(s.target, s.index, s.body, s.over, s.reduce) for s in step.statements]
    return {a.name: a for a in step.arrays}, statements, step.states, step.output, step.dims


@pytest.mark.parametrize("name", fwgen.list_rules())
def test_a_function_means_what_the_file_means(name, tmp_path):
    rule = fwgen.load_rule(name)
    function = made(twin(rule), tmp_path)
    assert meaning(function) == meaning(rule)
    assert (function.name, function.doc) == (rule.name, rule.doc)
