"""The workload of `benchmarks.ingest`: an event log, and what is done to it.

A raw file of `user,item,timestamp` becomes an interaction store: bad rows and duplicates
out, one cut in time, ids to rows by the number of training events, events sorted by user
and time. We do it through Beam, the peers each in their own way.
"""
