"""Reads raw files of any format as Arrow batches; damage only affects the damaged rows.

A row goes through: file → `Source` → pieces (`pieces.plan_pieces`) → batches of columns
(`pieces.read_piece`) → typed values (`values`), or a dead letter.

source_files     the files of a config: globs, spans, remote files; their bytes
streams          bytes and text in any compression and encoding, within limits
source           the interface of a source: `Source`, `Piece`, `RawBatch`
pieces           the source of each file, its pieces, and their rows
text_source      formats of lines of text, and the rows in them
*_source         CSV, JSON Lines, Parquet, TFRecord; Delta, Iceberg, SQL, Kafka
tables           the interface of sources that aren't files: `Table`
nested           nested columns, and rows that hold lists of events
values           raw columns of any type → ids, times, numbers, texts, lists
"""
