"""Files, processes and signals: what the rest builds on, and nothing about models.

manifest  one JSON file that lists the files of a folder with their sizes and checksums
"""
