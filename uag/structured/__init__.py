"""Structured answers: logits processors for JSON of a schema."""

from uag.structured.json_schemas import ANY_OBJECT, GuidanceProcessor, JsonSchemas

__all__ = ["ANY_OBJECT", "GuidanceProcessor", "JsonSchemas"]
