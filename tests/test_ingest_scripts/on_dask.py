"""Runs the ingestion on a Dask cluster of two processes; prints what the benchmark prints."""

import sys

from dask.distributed import LocalCluster

from benchmarks import ingest_runs


def main() -> None:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        sys.argv += [
            "--runner=apache_beam.runners.dask.dask_runner.DaskRunner",
            f"--dask_client_address={cluster.scheduler_address}",
            "--dask_partition_size=1",
        ]
        ingest_runs.ours()


if __name__ == "__main__":
    main()
