"""Structured answers: logits processors for JSON of a schema."""

from uag.structured.json_schemas import ANY_OBJECT, JsonSchemas

__all__ = ["ANY_OBJECT", "JsonSchemas"]
