"""Raw files of any format as Arrow batches, where damage costs the damaged row and no more.

A row goes through: file → `Source` (found by `detection`) → pieces (`pieces.plan_pieces`) →
batches of columns (`pieces.read_piece`) → typed values (`values`), or a dead letter.

files, spans     which files a config names: globs, spans, remote ones
source           what a source is: `Source`, `Piece`, `RawBatch`
text_source      formats of lines of text; `rows` and `streams` below it
*_source         CSV, JSON Lines, Parquet, TFRecord
nested           columns inside of columns, and rows that hold lists of events
values           a raw column of any type → ids, times, numbers, texts, lists
"""
