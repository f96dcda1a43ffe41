"""``ftd show``: what a model is, as sections or as one raw text."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from ftd import units
from ftd.cli import background, output
from ftd.errors import InvalidOption

_PARTS = ("license", "modelfile", "parameters", "system", "template")
_MAX_SHOWN = 3
_HEAD_LINES = 2


def run(options: argparse.Namespace) -> int:
    """Print one part of ``options.model`` or the overview."""
    wanted = [part for part in _PARTS if getattr(options, part)]
    if len(wanted) > 1:
        raise InvalidOption(
            "only one of '--license', '--modelfile', '--parameters', '--system', or '--template' "
            "can be specified",
            "ftd show --help",
        )
    body = {"model": options.model, "verbose": options.verbose}
    answer = background.connect().call("POST", "/api/show", body)
    if options.json:
        output.print_json(answer if not wanted else {wanted[0]: answer.get(wanted[0], "")})
    elif wanted:
        print(answer.get(wanted[0], "").removesuffix("\n"))
    else:
        print(overview(answer, options.verbose))
    return 0


def overview(answer: Mapping[str, Any], verbose: bool = False) -> str:
    """Return the sections of an answer of ``/api/show``."""
    sections = []
    for title, rows in _sections(answer, verbose):
        if rows:
            width = max(map(len, rows))
            padded = [(*row, *[""] * (width - len(row))) for row in rows]
            sections.append(f"  {title}\n{output.table((), padded, '    ')}\n")
    return "\n".join(sections)


def _sections(answer: Mapping[str, Any], verbose: bool) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    yield "Model", _model_rows(answer)
    yield "Capabilities", [(name,) for name in answer.get("capabilities") or ()]
    projector = answer.get("projector_info") or {}
    kind = str(projector.get("general.architecture", ""))
    yield (
        "Projector",
        _rows(
            projector,
            ("architecture", "general.architecture"),
            ("parameters", "general.parameter_count"),
            ("embedding length", f"{kind}.vision.embedding_length"),
            ("dimensions", f"{kind}.vision.projection_dim"),
        ),
    )
    lines = [line.split(None, 1) for line in answer.get("parameters", "").splitlines() if line.strip()]
    yield "Parameters", [(key, *value) for key, *value in lines]
    if verbose:
        info = answer.get("model_info") or {}
        yield "Metadata", [(key, _shortened(info[key])) for key in sorted(info)]
        yield (
            "Tensors",
            [
                (tensor["name"], tensor["type"], str(tensor["shape"]))
                for tensor in answer.get("tensors") or ()
            ],
        )
    for title, key in (("System", "system"), ("License", "license")):
        lines_of_text = [line for line in answer.get(key, "").splitlines() if line.strip()]
        head: list[tuple[str, ...]] = [(line.strip(),) for line in lines_of_text[:_HEAD_LINES]]
        yield title, [*head, ("...",)] if len(lines_of_text) > _HEAD_LINES else head


def _model_rows(answer: Mapping[str, Any]) -> list[tuple[str, ...]]:
    info, details = answer.get("model_info") or {}, answer.get("details") or {}
    architecture = str(info.get("general.architecture") or details.get("family") or "")
    rows: list[tuple[str, ...]] = [
        (label, answer[key])
        for label, key in (("Remote model", "remote_model"), ("Remote URL", "remote_host"))
        if answer.get(key)
    ]
    if architecture:
        rows.append(("architecture", architecture))
    if info.get("general.parameter_count"):
        rows.append(("parameters", units.format_count(int(info["general.parameter_count"]))))
    elif details.get("parameter_size"):
        rows.append(("parameters", details["parameter_size"]))
    rows += _rows(
        info,
        ("context length", f"{architecture}.context_length"),
        ("embedding length", f"{architecture}.embedding_length"),
    )
    if details.get("quantization_level"):
        rows.append(("quantization", details["quantization_level"]))
    if answer.get("requires"):
        rows.append(("requires", answer["requires"]))
    return rows


def _rows(info: Mapping[str, Any], *wanted: tuple[str, str]) -> list[tuple[str, ...]]:
    return [(label, str(info[key])) for label, key in wanted if info.get(key) is not None]


def _shortened(value: object) -> str:
    if not isinstance(value, list):
        return str(value).lower() if isinstance(value, bool) else str(value)
    shown = " ".join(map(str, value[:_MAX_SHOWN]))
    more = len(value) - _MAX_SHOWN
    return f"[{shown} ...+{more} more]" if more > 0 else f"[{shown}]"
