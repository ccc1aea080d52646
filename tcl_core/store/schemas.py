"""The tables: their columns, how they are encoded, and how large they may be."""

from __future__ import annotations

import pyarrow as pa

from tcl_core.records import SCHEMA_VERSION

ROWS_PER_GROUP = 65_536  # the unit of streaming: some 10 MB of records in memory
# A file of a few hundred kilobytes can claim any number of rows: readers refuse more than a stage would write.
MOST_ROWS = {"tasks": 100_000, "networks": 1_000_000, "sketches": 1_000_000, "programs": 20_000_000, "records": 10**9}
MOST_BYTES_PER_GROUP = 4 << 30


def _schema(table: str, **columns: pa.DataType) -> pa.Schema:
    metadata = {"tcl.table": table, "tcl.schema_version": str(SCHEMA_VERSION)}
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()], metadata=metadata)


_TEXT, _INT, _INTS = pa.string(), pa.int32(), pa.list_(pa.int32())

SCHEMAS: dict[str, pa.Schema] = {
    schema.metadata[b"tcl.table"].decode(): schema
    for schema in (
        _schema("tasks", task_key=_TEXT, name=_TEXT, op_type=_TEXT, flops=pa.float64(), module_json=_TEXT),
        _schema("networks", network=_TEXT, split=_TEXT, task_key=_TEXT, weight=_INT),
        _schema("sketches", task_key=_TEXT, sketch_id=_INT, trace_json=_TEXT),
        _schema("programs", task_key=_TEXT, split=_TEXT, program_id=_INT, sketch_id=_INT, decisions=_INTS),
        _schema(
            "records", task_key=_TEXT, sketch_id=_INT, program_id=_INT, decisions=_INTS,
            latencies_s=pa.list_(pa.float32()), spread=pa.float32(), error=_TEXT, message=_TEXT, round=_INT,
            measured_at=pa.timestamp("us", tz="UTC"), protocol=_TEXT, host=_TEXT, tvm_version=_TEXT,
            checked=pa.bool_(), disturbed=pa.bool_(),
        ),
    )
}  # fmt: skip

_REPEATED = {
    "task_key", "op_type", "network", "split", "sketch_id", "decisions", "error", "message", "round",
    "protocol", "host", "tvm_version",
}  # fmt: skip
# For programs drawn from ten sketches these save 2 of 31 bytes per record: programs are in order, and latencies near each other.
_ENCODINGS = {
    "program_id": "DELTA_BINARY_PACKED", "measured_at": "DELTA_BINARY_PACKED", "spread": "BYTE_STREAM_SPLIT",
    "latencies_s": "BYTE_STREAM_SPLIT",
}  # fmt: skip


def dictionary_columns(schema: pa.Schema) -> list[str]:
    return [_leaf(field) for field in schema if field.name in _REPEATED]


def encodings(schema: pa.Schema) -> dict[str, str]:
    return {_leaf(field): _ENCODINGS[field.name] for field in schema if field.name in _ENCODINGS}


def repeated_texts(table: str) -> list[str]:
    return [field.name for field in SCHEMAS[table] if pa.types.is_string(field.type) and field.name in _REPEATED]


def _leaf(field: pa.Field) -> str:
    """Parquet's name of the column that holds a field's values."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name
