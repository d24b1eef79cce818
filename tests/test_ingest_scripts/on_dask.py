"""Runs the ingestion on a Dask cluster of two processes; prints what the benchmark prints."""

import sys

from dask.distributed import LocalCluster

from benchmarks.ingest_case import ours


def main() -> None:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        sys.argv += [
            "--runner=apache_beam.runners.dask.dask_runner.DaskRunner",
            f"--dask_client_address={cluster.scheduler_address}",
            "--dask_partition_size=1",
        ]
        ours.main()


if __name__ == "__main__":
    main()
