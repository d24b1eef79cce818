"""Raw files of any format as Arrow batches, where damage costs the damaged row and no more.

A row goes through: file → `Source` → pieces (`pieces.plan_pieces`) → batches of columns
(`pieces.read_piece`) → typed values (`values`), or a dead letter.

source_files     which files a config names: globs, spans, remote ones; their bytes
streams          bytes and text of any compression and encoding, within limits
source           what a source is: `Source`, `Piece`, `RawBatch`
pieces           the source of each file, its pieces, and their rows
text_source      formats of lines of text, and the rows in them
*_source         CSV, JSON Lines, Parquet, TFRecord
nested           columns inside of columns, and rows that hold lists of events
values           a raw column of any type → ids, times, numbers, texts, lists
"""
