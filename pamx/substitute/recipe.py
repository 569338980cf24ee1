"""What a model's computation was found to be, in a form that can be written down.

Finding it out takes a few forward passes; with the recipe a later start does without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pamx.substitute.structure import AttentionPlan, GatedModule, GatedPlan, LayerPlan, OtherPlan


@dataclass(frozen=True)
class Recipe:
    """Which layers are fused, and how.

    Attributes:
        layers: Names of the decoder layers, in order.
        plans: Of the layers that are fused.
        gated: Gated MLPs of other layers that are one operation each.
        reasons: Why the other layers are not fused, by name.
        early: Whether the last layer may drop rows whose logits nobody wants.
        fast: Whether `fast` stays close to the model's own numbers.
        refused: Why nothing but attention is replaced; "": it is.
        kept: Linear layers and embeddings that are not, for the model reads their weights itself.
    """

    layers: tuple[str, ...] = ()
    plans: tuple[LayerPlan, ...] = ()
    gated: tuple[GatedModule, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    early: bool = False
    fast: bool = True
    refused: str = ""
    kept: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Recipe:
        """Raises KeyError, TypeError or ValueError if this is not what `as_json` gave."""
        return cls(
            layers=tuple(str(name) for name in value["layers"]),
            plans=tuple(_layer(plan) for plan in value["plans"]),
            gated=tuple(GatedModule(g["module"], _gated(g["plan"])) for g in value["gated"]),
            reasons=dict(value["reasons"]),
            early=bool(value["early"]),
            fast=bool(value["fast"]),
            refused=str(value["refused"]),
            kept=tuple(str(name) for name in value["kept"]),
        )


def _layer(value: dict[str, Any]) -> LayerPlan:
    attention, mlp = dict(value["attention"]), value["mlp"]
    attention["projections"] = tuple(attention["projections"])
    if attention["sinks"] is not None:
        attention["sinks"] = tuple(attention["sinks"])
    return LayerPlan(
        value["layer"],
        AttentionPlan(**attention),
        _gated(mlp) if "down" in mlp else OtherPlan(**mlp),
    )


def _gated(value: dict[str, Any]) -> GatedPlan:
    return GatedPlan(**{**value, "projections": tuple(value["projections"])})
