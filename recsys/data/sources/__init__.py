"""Raw files of any format as Arrow batches, where damage costs the damaged row and no more.

files           which files a config names: globs, spans, remote ones
detection       the format and the compression of a file, by its name and first bytes
pieces          the parts of files that workers read, and the look before the work starts
raw_batch       rows of one file, and the dead letters among them
csv_*, jsonl, parquet, tfrecord   the formats
values          a raw column of any type → ids, times, numbers, texts, lists
"""
