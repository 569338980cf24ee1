"""Whether a file's content is a whole record: a JSON Schema of the keywords that ours has."""

from __future__ import annotations

import math
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}


def finite(text: str) -> float:
    """For `json.loads`, which takes NaN, Infinity and 1e999 otherwise; ValueError for these."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def fault(value: Any, schema: dict[str, Any], root: dict[str, Any], where: str = "") -> str | None:
    """Where and how a value does not fit, as "cells[0].batch is no integer"; None if it does.

    Args:
        schema: What it must fit.
        root: Where "$ref" leads into: "$defs".
        where: The value's place, of the file.
    """
    if "$ref" in schema:
        return fault(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root, where)
    place = where or "it"
    types = schema.get("type", [])
    wanted = [types] if isinstance(types, str) else types
    if wanted and not any(_is(value, name) for name in wanted):
        return f"{place} is no {' or '.join(wanted)}"
    if "const" in schema and value != schema["const"]:
        return f"{place} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{place} is none of {', '.join(map(str, schema['enum']))}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number_fault(value, schema, place)
    if isinstance(value, list):
        return _list_fault(value, schema, root, where)
    if isinstance(value, dict):
        return _object_fault(value, schema, root, where)
    return None


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool) and name != "boolean":
        return False
    return isinstance(value, _TYPES[name])


def _number_fault(value: float, schema: dict[str, Any], place: str) -> str | None:
    if not -1e300 < value < 1e300:  # NaN neither
        return f"{place} is no finite number"
    if value < schema.get("minimum", value) or value > schema.get("maximum", value):
        return f"{place} is out of range"
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        return f"{place} is not above {schema['exclusiveMinimum']}"
    return None


def _list_fault(
    value: list[Any], schema: dict[str, Any], root: dict[str, Any], where: str
) -> str | None:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        return f"{where} has {len(value)} entries"
    found = (fault(v, schema.get("items", {}), root, f"{where}[{i}]") for i, v in enumerate(value))
    return next((f for f in found if f is not None), None)


def _object_fault(
    value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], where: str
) -> str | None:
    dot = f"{where}." if where else ""
    for name in schema.get("required", []):
        if name not in value:
            return f"{dot}{name} is missing"
    others = schema.get("additionalProperties", {})
    for name, held in value.items():
        known = schema.get("properties", {}).get(name, others)
        if known is False:
            return f"{dot}{name} is unknown"
        if (found := fault(held, known, root, f"{dot}{name}")) is not None:
            return found
    return None
