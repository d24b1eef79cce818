"""Files, processes and signals; independent of models.

manifest  one JSON file that lists the files of a folder with their sizes and checksums
"""
