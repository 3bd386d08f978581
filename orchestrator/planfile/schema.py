"""The JSON Schema (draft 2020-12) of a plan, from which editors complete: each collector and step by its `use`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from orchestrator import registry
from orchestrator.collectors.base import Collector
from orchestrator.env_steps.base import Step
from orchestrator.launchers.base import Launcher
from orchestrator.plan import Together


class _Generator(GenerateJsonSchema):
    """Without the titles that pydantic makes of field names: editors show the names already."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def build(root: type[BaseModel], plugins: bool) -> dict[str, Any]:
    """The schema of `root`, whose required keys may also come from the plan that it extends.

    A class of another package that can't be described is left out."""
    collectors = _classes(registry.collector, registry.collector_names() if plugins else registry.COLLECTORS, Collector)
    steps = _classes(registry.environment_step, registry.environment_names() if plugins else registry.ENVIRONMENT, Step)
    launchers = _classes(registry.launcher, registry.launcher_names() if plugins else registry.LAUNCHERS, Launcher)
    models: list[type[BaseModel]] = [root, Together, *collectors, *steps, *launchers]
    refs, schema = models_json_schema([(model, "validation") for model in models], schema_generator=_Generator)
    ref = {model: refs[model, "validation"] for model in models}
    choices = {
        "collector": [ref[model] for model in collectors],
        "step": [ref[model] for model in steps],
        "launcher": [ref[model] for model in launchers],
        "item": [*(ref[model] for model in collectors), ref[Together]],
    }
    filled = _filled(schema["$defs"], choices)
    for model in (*collectors, *steps, *launchers):
        _require_use(filled[ref[model]["$ref"].rpartition("/")[2]])
    own = filled.pop(root.__name__)
    own["anyOf"] = [{"required": own.pop("required")}, {"required": ["extends"]}]
    return {"$schema": GenerateJsonSchema.schema_dialect, **own, "title": "profrun plan", "$defs": filled}


def _classes(find: Callable[[str], type[Any]], names: Iterable[str], base: type[BaseModel]) -> list[type[BaseModel]]:
    found = []
    for name in names:
        try:
            model = find(name)
            model.model_json_schema()
            described = issubclass(model, base)
        except Exception:  # a broken package must not take the schema away
            described = False
        if described:
            found.append(model)
    return found


def _require_use(definition: dict[str, Any]) -> None:
    """In Python an item's class says what it is; in a file only `use` does."""
    definition["properties"]["use"].pop("default", None)
    definition["required"] = ["use", *(key for key in definition.get("required", ()) if key != "use")]


def _filled(schema: Any, choices: dict[str, list[Any]]) -> Any:
    """The schema with the real alternatives in place of its marks {"$comment": "collector"}."""
    if isinstance(schema, list):
        return [_filled(item, choices) for item in schema]
    if not isinstance(schema, dict):
        return schema
    marked = choices.get(schema.get("$comment", "")) if isinstance(schema.get("$comment"), str) else None
    if marked is not None:
        return {**{key: value for key, value in schema.items() if key != "$comment"}, "anyOf": marked}
    return {key: _filled(item, choices) for key, item in schema.items()}
