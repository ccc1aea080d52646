"""The data set on disk: Arrow schemas, whole-file writes, reading back.  The only part that touches Parquet.

Knows nothing of TVM, of measuring, or of who writes a file: the reader says what to do about a missing or damaged one
(``Remedy``).  Files appear whole or not at all (``tcl_core.files``), are compressed with zstd, dictionary-encoded where
values repeat, and carry a checksum and a schema version.  Records are partitioned by platform only (``platform=NAME/``)
and sorted by task.

    schemas    the tables            columns  rows as arrays        integrity  seals, checks and their errors
    reading    reading back          writing  whole files           sorting    records in order, even more than fit into memory
"""

from tcl_core.store.columns import (
    Coded as Coded,
    Columns as Columns,
    Ragged as Ragged,
    latency_spread as latency_spread,
    median_latency_s as median_latency_s,
)
from tcl_core.store.integrity import BY_STAGE as BY_STAGE, Remedy as Remedy, data_digest as data_digest
from tcl_core.store.reading import (
    iter_columns as iter_columns,
    iter_records as iter_records,
    read_records_by_file as read_records_by_file,
    read_records as read_records,
    read_table as read_table,
    record_hosts as record_hosts,
    skipped_reason as skipped_reason,
)
from tcl_core.store.schemas import SCHEMAS as SCHEMAS
from tcl_core.store.writing import (
    write_record_columns as write_record_columns,
    write_records as write_records,
    write_skipped as write_skipped,
    write_table as write_table,
)
